"""What a report shows, and what of it fits together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from scoremh._shared import checks
from scoremh.sampling.chains import Chains


@dataclass(frozen=True, eq=False)
class Contents:
    """What a report shows.

    Args:
        title: Of the page.
        about: What was run: command, data, rows, seed, versions, step size.
        columns: Names of the coordinates, one per number of an event where events are vectors; not read for images.
        data: `(sample, *event)`: rows that samples are compared with.
        samples: By the sampler's name, `(sample, *event)`; the first one is the run's own.
        chains: Their draws, and how likely moves were accepted.
        histories: By what was trained, from "step", "loss", "held_out" and other names to a number per look.
        metrics: By the sampler's name, from a metric's name to its value; None where there is none.
        floors: By the metric's name, its value between two fresh samples of the data, and the spread of that.
        warnings: In plain words.
    """

    title: str
    about: Mapping[str, str]
    columns: Sequence[str]
    data: Tensor
    samples: Mapping[str, Tensor]
    chains: Chains | None = None
    histories: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        checks.events(self.data, "data", finite=False)
        event = tuple(self.data.shape[1:])
        if len(event) > 3:
            fix = "Flatten every event to a vector."
            raise ValueError(checks.message("events that are vectors or images", f"events of shape {event}", fix))
        if not self.data.flatten(1).isfinite().all(1).any():
            fix = "Pass the rows that samples are to be compared with."
            raise ValueError(checks.message("data with a finite row", "none", fix))
        if not self.samples:
            fix = 'Pass a dict from a sampler\'s name to its samples, for example {"MALA": chains.last}.'
            raise ValueError(checks.message("at least one sampler's samples", "none", fix))
        for name, x in self.samples.items():
            checks.events(x, f"samples[{name!r}]", finite=False)
            _same(f"samples[{name!r}]", tuple(x.shape[1:]), event)
        if self.chains is not None:
            _same("chains.draws", tuple(self.chains.draws.shape[2:]), event)
            if self.chains.draws.numel() == 0:
                got, fix = checks.describe(self.chains.draws), "Leave chains out where nothing was drawn."
                raise ValueError(checks.message("chains with at least one draw", got, fix))
        if not self.images and len(self.columns) != event[0]:
            fix = "Name every coordinate of an event, in order."
            raise ValueError(checks.message(f"{event[0]} columns, one per coordinate", len(self.columns), fix))
        for name, history in self.histories.items():
            lengths = {key: len(values) for key, values in history.items()}
            if len(set(lengths.values())) > 1:
                fix = "Pass one number per look, NaN where there is none."
                raise ValueError(checks.message(f"histories[{name!r}] of one length", lengths, fix))

    @property
    def images(self) -> bool:
        """Whether an event is an image, (row, column) or (channel, row, column)."""
        return self.data.ndim > 2

    @property
    def run(self) -> str:
        """The name of the run's own sampler."""
        return next(iter(self.samples))


def _same(name: str, shape: tuple[int, ...], event: tuple[int, ...]) -> None:
    if shape != event:
        fix = "Pass data, samples and chains in the same coordinates."
        raise ValueError(checks.message(f"{name} to have events of shape {event}, as the data", shape, fix))


def ratio(value: float, floor: tuple[float, float]) -> float | None:
    """Return a metric as a multiple of its floor, where that says something: an unbiased one has a floor about 0.

    Args:
        value: Of the metric.
        floor: Its value between two fresh samples, and the spread of that.
    """
    mean, spread = floor
    return value / mean if value >= 0 and mean > spread else None

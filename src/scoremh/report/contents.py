"""The contents of a report, checked where they are put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from scoremh._shared import checks
from scoremh.diagnostics import Caution
from scoremh.evaluation import Check, Verdict
from scoremh.sampling.chains import Chains

MAX_EVENT_AXES = 3  # an image in colour


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents of a report.

    Args:
        title: Title of the page.
        about: What was run: command, data, rows, seed, versions, step size.
        columns: Names of the coordinates of an event; not used for images.
        data: Rows `(sample, *event)` that samples are compared with.
        samples: Samples `(sample, *event)` by sampler; the first one is the run's own.
        chains: Chains to show the draws and the acceptance of.
        histories: By what was trained, from "step", "loss", "held_out" and other names to one number per record.
        metrics: By sampler and metric, its value; None where there is none.
        floors: By metric, mean and spread of its value between two samples of the data.
        warnings: What a reader should know.
        data_name: What the rows in `data` are called on the page.
        verdict: What to think of the samples of the run's own sampler.
        checks: Checks behind the verdict.
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
    warnings: Sequence[Caution | str] = ()
    data_name: str = "the data"
    verdict: Verdict | None = None
    checks: Sequence[Check] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        self._check_data()
        self._check_samples()
        self._check_chains()
        self._check_histories()

    @property
    def images(self) -> bool:
        """Whether an event is an image, (row, column) or (channel, row, column)."""
        return self.data.ndim > 2

    @property
    def run(self) -> str:
        """The name of the run's own sampler."""
        return next(iter(self.samples))

    def _check_data(self) -> None:
        checks.events(self.data, "data", finite=False)
        event = tuple(self.data.shape[1:])
        if len(event) > MAX_EVENT_AXES:
            fix = "Flatten every event to a vector."
            raise ValueError(checks.message("events that are vectors or images", f"events of shape {event}", fix))
        if not self.data.flatten(1).isfinite().all(1).any():
            fix = "Pass the rows that samples are to be compared with."
            raise ValueError(checks.message("data with a finite row", "none", fix))
        if not self.images and len(self.columns) != event[0]:
            fix = "Name every coordinate of an event, in order."
            raise ValueError(checks.message(f"{event[0]} columns, one per coordinate", len(self.columns), fix))

    def _check_samples(self) -> None:
        if not self.samples:
            fix = 'Pass a dict from a sampler\'s name to its samples, for example {"MALA": chains.last}.'
            raise ValueError(checks.message("at least one sampler's samples", "none", fix))
        for name, x in self.samples.items():
            checks.events(x, f"samples[{name!r}]", finite=False)
            self._check_event(f"samples[{name!r}]", tuple(x.shape[1:]))

    def _check_chains(self) -> None:
        if self.chains is None:
            return
        self._check_event("chains.draws", tuple(self.chains.draws.shape[2:]))
        if self.chains.draws.numel() == 0:
            got, fix = checks.describe(self.chains.draws), "Leave chains out where there are no draws."
            raise ValueError(checks.message("chains with at least one draw", got, fix))

    def _check_histories(self) -> None:
        for name, history in self.histories.items():
            lengths = {key: len(values) for key, values in history.items()}
            if len(set(lengths.values())) > 1:
                fix = "Pass one number per record, NaN where there is none."
                raise ValueError(checks.message(f"histories[{name!r}] of one length", lengths, fix))

    def _check_event(self, name: str, shape: tuple[int, ...]) -> None:
        event = tuple(self.data.shape[1:])
        if shape != event:
            fix = "Pass data, samples and chains in the same coordinates."
            raise ValueError(checks.message(f"{name} to have events of shape {event}, as the data", shape, fix))

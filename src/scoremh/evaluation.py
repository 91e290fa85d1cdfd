"""Evaluation: the distances of samples to reference rows, each beside its floor, and a two-sample test.

The floor of a metric is its value between two samples of the reference itself: no sampler comes closer than that, but
for chance. All of it is in units of the standard deviations of the reference, column by column: in those of the data, a
column in thousands would hide all others. Distances of the kind `metrics.w1` need the extra `metrics`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scoremh import metrics
from scoremh._shared import checks
from scoremh._shared.files import replacing
from scoremh._shared.progress import progress_bar
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.diagnostics.cautions import Caution

__all__ = ["MAX_POINTS", "MIN_ROWS", "P_VALUE_LIMIT", "Evaluation", "evaluate", "floor_ratio"]

MAX_POINTS = 1000  # points of a sample to compare, by default
MIN_ROWS = 20  # rows of a reference
FLOOR_REPEATS = 5  # pairs of samples of the reference that a floor is averaged over
P_VALUE_LIMIT = 0.01  # below, samples differ from the reference
TABLE_WIDTH = 140  # characters

Metric = Callable[[Tensor, Tensor], float]
Floor = tuple[float, float]  # mean and spread over pairs of samples of the reference


@dataclass(frozen=True)
class Evaluation:
    """How far samples are from a reference; print it for a table.

    Args:
        points: Number of points of each sample that were compared.
        floors: By metric, mean and spread of its value between two samples of the reference.
        metrics: By sampler and metric, the distance to the reference, in units of its standard deviations; None where
            draws were not finite.
        p_values: By sampler, the p-value of a two-sample test; 0 where draws were not finite.
        reference: What the samples were compared with.
    """

    points: int
    floors: Mapping[str, Floor]
    metrics: Mapping[str, Mapping[str, float | None]]
    p_values: Mapping[str, float]
    reference: str = "reference rows"

    def __str__(self) -> str:
        """Return the distances as a table, each with its multiple of the floor."""
        table = Table(
            "", *self.floors, "p", title=f"{self.points} points each, in standard deviations", box=None, pad_edge=False
        )
        for name, values in self.metrics.items():
            cells = (_cell(values[metric], floor) for metric, floor in self.floors.items())
            table.add_row(name, *cells, f"{self.p_values[name]:.3g}")
        floors = (f"{mean:.3g} +- {spread:.1g}" for mean, spread in self.floors.values())
        table.add_row("floor: fresh rows", *floors, "")
        console = Console(width=TABLE_WIDTH)
        with console.capture() as capture:
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    @property
    def warnings(self) -> list[Caution]:
        """One caution for each sampler whose draws differ from the reference."""
        return [
            Caution("p_value", p, f"{_subject(name)} can be told apart from {self.reference} (p = {p:.2g}).")
            for name, p in self.p_values.items()
            if p < P_VALUE_LIMIT
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON holds them."""
        return {
            "points": self.points,
            "floors": {name: list(floor) for name, floor in self.floors.items()},
            "samplers": {name: {**values, "p_value": self.p_values[name]} for name, values in self.metrics.items()},
            "reference": self.reference,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `to_dict` wrote.

        Args:
            record: What `to_dict` returned.
        """
        samplers = record["samplers"]
        return cls(
            points=record["points"],
            floors={name: (mean, spread) for name, (mean, spread) in record["floors"].items()},
            metrics={name: {key: one[key] for key in record["floors"]} for name, one in samplers.items()},
            p_values={name: one["p_value"] for name, one in samplers.items()},
            reference=record["reference"],
        )

    def save(self, path: str | Path) -> None:
        """Write the numbers to a JSON file.

        Args:
            path: File to write.
        """
        with replacing(Path(path)) as partial_file:
            partial_file.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def evaluate(
    samples: Tensor | Mapping[str, Tensor],
    reference: Tensor,
    *,
    points: int = MAX_POINTS,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Compare samples with reference rows, and return their distances, floors and p-values.

    Args:
        samples: Draws `(draw, *event)`, or a dict of them by sampler.
        reference: Rows `(row, *event)` that nothing was learned from.
        points: Number of points to compare at most; the floor takes twice as many rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        progress: Show a progress bar.
    """
    samples = {"draws": samples} if isinstance(samples, Tensor) else samples
    _check(samples, reference, points)
    generator = torch.Generator().manual_seed(seed)
    measures = _metrics(generator)
    scale = _scale(reference)
    rows = reference[torch.randperm(len(reference), generator=generator).to(reference.device)] / scale
    n = min(points, len(rows) // 2, *map(len, samples.values()))
    compared = {name: draws[:n] / scale.to(draws) for name, draws in samples.items()}
    finite = {name: bool(draws.isfinite().all()) for name, draws in compared.items()}
    floors: dict[str, Floor] = {}
    distances: dict[str, dict[str, float | None]] = {name: {} for name in samples}
    with progress_bar(len(measures) * (1 + len(samples)), "evaluating", unit="metrics", show=progress) as tick:
        for metric, measure in measures.items():
            floor = metrics.floor(rows, measure, n, repeats=FLOOR_REPEATS, generator=generator)
            floors[metric] = (floor.mean, floor.spread)
            tick(1, metric)
            for name, draws in compared.items():
                distances[name][metric] = measure(draws, rows[:n]) if finite[name] else None
                tick(1, metric)
    p_values = {
        name: metrics.two_sample_test(draws, rows[:n], generator=generator).p_value if finite[name] else 0.0
        for name, draws in compared.items()
    }
    return Evaluation(n, floors, distances, p_values)


def _scale(reference: Tensor) -> Tensor:
    """Return the standard deviation of every column, 1 for constants; of all together for images."""
    spread = reference.double().std(0)
    if spread.numel() > MAX_WHITENED_SIZE:
        spread = spread.square().mean().sqrt()
    return torch.where(spread > 0, spread, 1.0).to(reference)


def floor_ratio(value: float, floor: Floor) -> float | None:
    """Return a metric as a multiple of its floor; None for an unbiased metric, whose floor is about 0.

    Args:
        value: Value of the metric.
        floor: Mean and spread of its value between two samples of the reference.
    """
    mean, spread = floor
    return value / mean if value >= 0 and mean > spread else None


def _metrics(generator: torch.Generator) -> dict[str, Metric]:
    return {
        "w1": metrics.w1,
        "w2": metrics.w2,
        "sliced_w2": partial(metrics.sliced_w2, generator=generator),
        "energy_distance": metrics.energy_distance,
        "mmd_squared": metrics.mmd_squared,
    }


def _check(samples: Mapping[str, Tensor], reference: Tensor, points: int) -> None:
    """Refuse samples and rows that cannot be compared."""
    if not samples:
        raise ValueError(checks.message("samples of at least one sampler", "none", "Pass draws, or a dict of draws."))
    checks.events(reference, "reference")
    for name, draws in samples.items():
        checks.events(draws, f"samples[{name!r}]", finite=False)
        if draws.shape[1:] != reference.shape[1:]:
            expected = f"samples[{name!r}] to have events of shape {tuple(reference.shape[1:])}, as the reference"
            fix = "Compare samples and rows of the same columns."
            raise ValueError(checks.message(expected, tuple(draws.shape[1:]), fix))
    if len(reference) < MIN_ROWS:
        fix = "Pass a reference with more rows."
        raise ValueError(checks.message(f"at least {MIN_ROWS} rows to compare with", len(reference), fix))
    checks.count(points, "points")


def _subject(name: str) -> str:
    return "The draws" if name == "draws" else name


def _cell(value: float | None, floor: Floor) -> str:
    if value is None:
        return "not finite"
    ratio = floor_ratio(value, floor)
    return f"{value:.3g}" if ratio is None else f"{value:.3g} ({ratio:.2g} x)"

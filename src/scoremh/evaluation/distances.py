"""Evaluation: the distances of samples to reference rows, each beside its floor, and a two-sample test.

The floor of a metric is its value between two samples of the reference itself: no sampler comes closer than that, but
for chance. All of it is in units of the standard deviations of the reference, column by column: in those of the data, a
column in thousands would hide all others. Distances of the kind `metrics.w1` need the extra `metrics`. The p-values and
the verdict are on all rows and draws, up to 2,000 and 1,000 of them; the distances on half, since a floor needs as many
rows again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import metrics
from scoremh._shared import checks
from scoremh._shared.files import replacing
from scoremh._shared.progress import progress_bar
from scoremh._shared.samples import Samples, as_tensor
from scoremh.coordinates import MAX_WHITENED_SIZE
from scoremh.diagnostics.cautions import Caution
from scoremh.evaluation.agreement import FARTHEST, MAX_DRAWS, MAX_ROWS, agreement
from scoremh.evaluation.checks import Check
from scoremh.evaluation.verdicts import (
    Verdict,
    aligned,
    html_rows,
    html_table,
    html_verdict,
    number,
    power_line,
    text_table,
    verdict,
)

MAX_POINTS = 1000  # points of a sample to compare, by default
MIN_ROWS = 20  # rows of a reference
FLOOR_REPEATS = 5  # pairs of samples of the reference that a floor is averaged over
P_VALUE_LIMIT = 0.01  # below, samples differ from the reference
FLOOR_LINE = "floor: the distance between two samples of the rows themselves; 1 x is as near as draws come."
P_LINE = "p: the chance of a difference as large as this one between two samples of the same distribution."
LOOK = "See where they differ in a report."

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
        rows: Number of rows that p-values, checks and verdict are on.
        noticed_shift: Shift of one column, in standard deviations, that the checks would have noticed.
        verdict: Good, usable, or do not use, on the first sampler.
        checks: Checks of the first sampler's draws.
    """

    points: int
    floors: Mapping[str, Floor]
    metrics: Mapping[str, Mapping[str, float | None]]
    p_values: Mapping[str, float]
    reference: str = "reference rows"
    rows: int = 0
    noticed_shift: float | None = None
    verdict: Verdict | None = None
    checks: tuple[Check, ...] = ()

    def __str__(self) -> str:
        """Return the verdict, the checks and the distances, each with its multiple of the floor, and what they mean."""
        said = [] if self.verdict is None else [str(self.verdict)]
        said += [text_table(self.checks)] if self.checks else []
        title = f"{self.points} points each, in standard deviations"
        notes = [FLOOR_LINE, P_LINE]
        if self.noticed_shift is not None:
            notes.append(f"power: {power_line(self.noticed_shift, self.rows)}.")
        return "\n".join([*said, aligned(self._head, self._table, title), *notes])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        said = "" if self.verdict is None else html_verdict(self.verdict) + html_table(self.checks)
        return f"{said}{html_rows(self._head, self._table)}<p>{FLOOR_LINE}<br>{P_LINE}</p>"

    @property
    def _head(self) -> list[str]:
        return ["", *self.floors, "p"]

    @property
    def _table(self) -> list[list[str]]:
        rows = [
            [
                name,
                *(_cell(values[metric], floor) for metric, floor in self.floors.items()),
                number(self.p_values[name]),
            ]
            for name, values in self.metrics.items()
        ]
        floors = (f"{number(mean)} +- {number(spread, 2)}" for mean, spread in self.floors.values())
        return [*rows, ["floor: fresh rows", *floors, ""]]

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
            "rows": self.rows,
            "noticed_shift": self.noticed_shift,
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "checks": [asdict(check) for check in self.checks],
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
            rows=record.get("rows", 0),  # of a file that was written before there was a verdict
            noticed_shift=record.get("noticed_shift"),
            verdict=Verdict(**record["verdict"]) if record.get("verdict") else None,
            checks=tuple(Check(**one) for one in record.get("checks", ())),
        )

    def save(self, path: str | Path) -> None:
        """Write the numbers to a JSON file.

        Args:
            path: File to write.
        """
        with replacing(Path(path)) as partial_file:
            partial_file.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def evaluate(
    samples: Samples | Mapping[str, Samples],
    reference: Samples,
    *,
    points: int = MAX_POINTS,
    seed: int = 0,
    columns: Sequence[str] = (),
    progress: bool = False,
) -> Evaluation:
    """Compare samples with reference rows, and return their distances, floors and p-values.

    Args:
        samples: Draws `(draw, *event)`, or a dict of them by sampler.
        reference: Rows `(row, *event)` that nothing was learned from.
        points: Number of points to compare at most; the floor takes twice as many rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        columns: Names of the coordinates of an event; x0, x1, ... if empty.
        progress: Show a progress bar.
    """
    given = samples if isinstance(samples, Mapping) else {"draws": samples}
    clouds = {name: as_tensor(draws, f"samples[{name!r}]") for name, draws in given.items()}
    return _evaluation(clouds, as_tensor(reference, "reference"), points, seed, columns, progress=progress)


def _evaluation(
    samples: Mapping[str, Tensor], reference: Tensor, points: int, seed: int, columns: Sequence[str], *, progress: bool
) -> Evaluation:
    """Return the evaluation of tensors."""
    _check(samples, reference, points)
    generator = torch.Generator().manual_seed(seed)
    measures = _metrics(generator)
    scale = _scale(reference)
    rows = reference[torch.randperm(len(reference), generator=generator).to(reference.device)] / scale
    n = min(points, len(rows) // 2, *map(len, samples.values()))
    limit = FARTHEST * max(1.0, float(rows.abs().max()))
    compared = {name: (draws / scale.to(draws)).clamp(-limit, limit) for name, draws in samples.items()}
    finite = {name: bool(draws.isfinite().all()) for name, draws in samples.items()}
    floors: dict[str, Floor] = {}
    distances: dict[str, dict[str, float | None]] = {name: {} for name in samples}
    with progress_bar(len(measures) * (1 + len(samples)), "evaluating", unit="metrics", show=progress) as tick:
        for metric, measure in measures.items():
            floor = metrics.floor(rows, measure, n, repeats=FLOOR_REPEATS, generator=generator)
            floors[metric] = (floor.mean, floor.spread)
            tick(1, metric)
            for name, draws in compared.items():
                distances[name][metric] = measure(draws[:n], rows[:n]) if finite[name] else None
                tick(1, metric)
    p_values = {name: _p_value(draws, finite[name], rows, generator) for name, draws in compared.items()}
    found = Evaluation(n, floors, distances, p_values, rows=min(len(rows), MAX_ROWS))
    names = columns or [f"x{i}" for i in range(reference[0].numel())]
    with progress_bar(1, "checks", unit="samplers", show=progress) as tick:
        found = _with_verdict(found, next(iter(samples.values())), reference, names, generator)
        tick(1)
    return found


def _p_value(draws: Tensor, finite: bool, rows: Tensor, generator: torch.Generator) -> float:
    """Return the p-value of a two-sample test of scaled draws and rows; 0 where draws were not finite."""
    if not finite:
        return 0.0
    return metrics.two_sample_test(draws[:MAX_DRAWS], rows[:MAX_ROWS], generator=generator).p_value


def _with_verdict(
    found: Evaluation, draws: Tensor, reference: Tensor, columns: Sequence[str], generator: torch.Generator
) -> Evaluation:
    """Return the evaluation with checks of the first sampler's draws, and the verdict."""
    lost = int((~draws.flatten(1).isfinite().all(1)).sum())
    if lost:
        reason = f"{lost:,} of {len(draws):,} draws are not finite; the limit is 0"
        return replace(found, verdict=Verdict("do not use", reason, LOOK))
    judged = agreement(draws, reference, columns, generator=generator)
    said = verdict(*judged, advice=LOOK)
    return replace(found, verdict=said, checks=judged.checks, noticed_shift=judged.noticed_shift)


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
    return number(value) if ratio is None else f"{number(value)} ({number(ratio, 2)} x)"

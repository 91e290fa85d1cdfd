"""What a sweep finds: the metrics by rule and step size, and which rule is better at how many of them."""

import math
from collections.abc import Sequence
from pathlib import Path

from studies import plots
from studies.framework import Records
from studies.framework.tables import markdown, mean, number, number_and_spread, pivot, spread
from studies.sweeps.cells import LABELS
from studies.table1 import problem as table1  # noqa: F401  # for the templates

METRICS = {"mmd": "MMD", "w1": "W1", "exact_w2": "exact W2"}  # the paper's W2 may come out below 0
MAX_RATIO_TO_FLOOR = 1000  # above, chains have diverged


def step_sizes(records: Records) -> dict[float, float]:
    """Return the step size of every factor, a mean over seeds."""
    tuned = mean(records.values("tuned", "step"))
    return {factor: factor * tuned for factor in records.settings["factors"]}


def floor_of(records: Records, metric: str) -> float:
    """Return the mean floor of a metric."""
    return mean(records.values("floor", metric))


def diverged(value: float, level: float) -> bool:
    """Return whether chains with this distance left the samples behind."""
    return value > MAX_RATIO_TO_FLOOR * abs(level)


def shown(records: Records, metric: str) -> str:
    """Return a table of one metric, by rule and step size, with what a step of a chain costs."""
    level, middle = floor_of(records, metric), min(records.settings["factors"], key=lambda f: abs(math.log(f)))

    def text(values: Sequence[float]) -> str:
        return "ran away" if diverged(mean(values), level) else number_and_spread(values)

    frame = pivot(records.kinds["draws"], "rule", "factor", metric, text)
    frame = frame.rename(columns={f: f"h = {h:.3g}" for f, h in step_sizes(records).items()})
    runs = {name: records.where("draws", rule=name, factor=middle) for name in frame.index}
    n = records.settings["draws"]
    calls = {name: mean([r["score_calls"] / (n * (r["steps"] + 1)) for r in there]) for name, there in runs.items()}
    frame["score calls"] = [f"{calls[name]:.2f}" for name in frame.index]
    frame["acceptance"] = [f"{mean([r['acceptance'] for r in runs[name]]):.2f}" for name in frame.index]
    return f"{markdown(frame.rename(index=LABELS), METRICS[metric])}\n\nThe floor is {number(level)}."


def means(records: Records, rule: str, metric: str) -> dict[float, float]:
    """Return the means of a metric over seeds, by factor."""
    return {f: mean(records.values("draws", metric, rule=rule, factor=f)) for f in records.settings["factors"]}


def good_factors(records: Records, metric: str, times: float) -> dict[str, list[float]]:
    """Return, by rule, the factors at which the metric is below so many times its least over all rules."""
    found = {rule: means(records, rule, metric) for rule in records.settings["rules"]}
    least = min(value for by_factor in found.values() for value in by_factor.values())
    return {rule: [f for f, value in by_factor.items() if value <= times * least] for rule, by_factor in found.items()}


def compared(records: Records, rule: str, other: str, metric: str) -> tuple[int, int]:
    """Return at how many steps a rule is better than another, and at how many worse, beyond the noise over seeds.

    The noise is twice the standard error of their difference over seeds, and counts as 0 with one seed.
    """
    better = worse = 0
    for factor in records.settings["factors"]:
        own, theirs = (records.values("draws", metric, rule=name, factor=factor) for name in (rule, other))
        gaps = [0.0 if a == b else a - b for a, b in zip(own, theirs, strict=True)]
        gap = sum(gaps) / len(gaps)
        noise = 2 * spread(gaps) / math.sqrt(len(gaps)) if math.isfinite(gap) else 0.0
        better, worse = better + (gap < -noise), worse + (gap > noise)
    return better, worse


def draw(records: Records, path: Path, metrics: Sequence[str], title: str) -> None:
    """Draw the metrics and the acceptance rate over step sizes, a panel each.

    Args:
        records: The records of the sweep.
        path: File to write.
        metrics: Names in `METRICS`.
        title: Title of the picture.
    """
    panels = {METRICS[metric]: curves(records, metric) for metric in metrics}
    panels["acceptance"] = {
        LABELS[rule]: (
            list(step_sizes(records).values()),
            [rate or math.nan for rate in means(records, rule, "acceptance").values()],  # no 0 on a logarithmic axis
        )
        for rule in records.settings["rules"]
    }
    levels = {METRICS[metric]: {"floor": level} for metric in metrics if (level := floor_of(records, metric)) > 0}
    options = {"log": True, "columns": 2, "shared": False, "title": title}
    plots.curve_panels(panels, path, labels=("step size h", ""), levels=levels, **options)  # type: ignore[arg-type]


def curves(records: Records, metric: str) -> dict[str, plots.Curve]:
    """Return a metric over step sizes by rule, with its spread over seeds, where chains did not diverge."""
    level, h = floor_of(records, metric), step_sizes(records)
    lines: dict[str, plots.Curve] = {}
    for rule in records.settings["rules"]:
        good = {f: v for f, v in means(records, rule, metric).items() if v > 0 and not diverged(v, level)}
        bars = [spread(records.values("draws", metric, rule=rule, factor=factor)) for factor in good]
        lines[LABELS[rule]] = ([h[factor] for factor in good], list(good.values()), bars)
    return lines

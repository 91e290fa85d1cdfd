"""Appendix A, first figure: Taylor rules, with and without averaging, beside integrals of the score, on Moons."""

import math
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch

from scoremh import MALA, DegenerateRuleWarning, Exact, RandomWalk, targets
from scoremh.acceptance import BalancedRule
from scoremh.experiments import _figures as figures
from scoremh.experiments import _sweeps as sweeps
from scoremh.experiments._cells import Task, markdown
from scoremh.experiments._figures import Found, where
from scoremh.experiments._sweeps import RULES, Sweep
from scoremh.experiments._table1_rows import seeded
from scoremh.types import Need, Point, Proposal, Target

LINES = ("taylor1", "taylor1_averaged", "taylor2", "taylor2_averaged", "simpson", "gauss3")
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
PRESETS = {
    "quick": Sweep("moons", LINES, (0.25, 1.0, 4.0), (11,), draws=500, chain_steps=100, training=0, floors=2),
    "paper": Sweep("moons", LINES, FACTORS, (1, 2, 3), draws=1000, chain_steps=300, training=0, floors=5),
}
CURVE, NOISE = 200, 0.1  # normals along each moon, and their standard deviation
STEPS = (0.0025, 0.01, 0.04)  # of MALA on Moons themselves; a random walk with the same noise
POINTS = 10_000
NEEDS: frozenset[Need] = frozenset({"score", "log_density"})
MEANT = {"mala": "MALA", "rw": "random walk"}


def moons_law() -> targets.GaussianMixture:
    """Return the law of scikit-learn's Moons with its density: normals along two half circles, close together."""
    angle = (torch.arange(CURVE) + 0.5) * math.pi / CURVE
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    covariances = (NOISE**2 * torch.eye(2)).expand(2 * CURVE, 2, 2)
    return targets.GaussianMixture(torch.full((2 * CURVE,), 0.5 / CURVE), torch.cat([upper, lower]), covariances)


@torch.inference_mode()
def ratios(name: str, kind: str, step: float, seed: int) -> dict[str, Any]:
    """Compare a rule's log ratio with the true one, with the true score, on candidates from exact draws.

    Args:
        name: Of the rule.
        kind: "mala" or "rw".
        step: h; the noise of both has variance 2 h.
        seed: Of points and candidates.
    """
    law, rule, exact = moons_law(), RULES[name].rule, Exact()
    proposal: Proposal = MALA(step) if kind == "mala" else RandomWalk(math.sqrt(2 * step))
    known = Target(law.score, law.log_density)
    current = Point.at(law.sample(POINTS, generator=seeded(2, seed)), known, NEEDS)
    proposed = Point.at(proposal.sample(current, generator=seeded(4, seed)), known, NEEDS)
    assert isinstance(rule, BalancedRule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        found, true = (
            one.log_ratio(current, proposed, target=known, proposal=proposal).double() for one in (rule, exact)
        )
    accepted = [one.clamp(max=0).exp() for one in (found, true)]
    return {
        "correlation": float(torch.corrcoef(torch.stack([found, true]))[0, 1]),
        "error": float((accepted[0] - accepted[1]).abs().mean()),
        "acceptance": float(accepted[1].mean()),
    }


def stages(config: Sweep) -> list[list[Task]]:
    """Return the tasks of the sweep, and the comparisons of ratios."""
    compared: list[Task] = [
        ("ratio", rule, kind, str(step), str(seed))
        for seed in config.seeds
        for rule in config.rules
        for kind in MEANT
        for step in STEPS
    ]
    return [*sweeps.stages(config), compared]


def cell(task: Task, *, config: Sweep, folder: Path) -> dict[str, Any]:
    """Compute a task.

    Args:
        task: Its words.
        config: How much.
        folder: Of the files.
    """
    if task[0] != "ratio":
        return sweeps.cell(task, config=config, folder=folder)
    _, rule, kind, step, seed = task
    return ratios(rule, kind, float(step), int(seed))


def section(found: Found) -> str:
    """Say what was found."""
    count, claims = len(found["settings"]["factors"]), []
    for metric, word in sweeps.METRICS.items():
        against = {
            other: sweeps.compared(found, "taylor1_averaged", other, metric)
            for other in ("taylor1", "taylor2", "taylor2_averaged", "simpson")
        }
        said = ", ".join(f"{RULES[o].words} {better} and {worse}" for o, (better, worse) in against.items())
        first = all(against[other][0] > against[other][1] for other in ("taylor1", "taylor2"))
        second = 2 * against["taylor2_averaged"][1] <= count
        claims.append(
            f"- {word}: {said}. Better than both without averaging: {'agrees' if first else 'does **not** agree'}; as "
            f"good as the second-order rule: {'agrees' if second else 'does **not** agree'}."
        )
    return (
        "## Appendix A: Taylor rules\n\n"
        "The paper: averaging makes the first-order rule better than Taylor-1 and Taylor-2 without it, and about as "
        "good as the second-order rule, which needs Hessians. It does not say with which proposal; its comparison with "
        "score-based MALA suggests MALA.\n\n"
        f"{sweeps.setting(found)}\n\n"
        + "\n\n".join(sweeps.shown(found, metric) for metric in sweeps.METRICS)
        + f"\n\nAt how many of {count} steps is averaged Taylor-1 better than another rule, and at how many worse, "
        "beyond twice the standard error over seeds?\n\n" + "\n".join(claims) + "\n\n" + _degenerate(found)
    )


def _degenerate(found: Found) -> str:
    records, rows = found["ratio"], [["rule", *(f"{word}, h = {h:g}" for word in MEANT.values() for h in STEPS)]]

    def told(name: str, kind: str, step: float) -> tuple[float, float]:
        there = where(records, rule=name, kind=kind, step=step)
        return (
            statistics.mean(record["correlation"] for record in there),
            statistics.mean(record["error"] for record in there),
        )

    for name in found["settings"]["rules"]:
        each = [told(name, kind, step) for kind in MEANT for step in STEPS]
        rows.append([RULES[name].words, *(f"{correlation:.3f}, {error:.3f}" for correlation, error in each)])

    def span(which: int, name: str, kind: str) -> str:
        values = [told(name, kind, step)[which] for step in STEPS]
        return f"{min(values):.2g} to {max(values):.2g}"

    return (
        "**With MALA the averaged Taylor-1 rule is degenerate.** It is the trapezoid, and the density cancels: log r = "
        "h (|s(x)|^2 - |s(x')|^2) / 4 exactly. What is left are the lengths of the scores at both ends, which are the "
        "same in every mode of one shape, whatever its weight. Below, on the law of Moons itself with its true score: "
        "the correlation of the rule's log ratio with the true one, and the mean error of the acceptance probability, "
        f"for candidates from {POINTS:,} exact draws.\n\n{markdown(rows)}\n\n"
        f"Averaged Taylor-1 has a correlation of {span(0, 'taylor1_averaged', 'mala')} with the truth with MALA, and "
        f"of {span(0, 'taylor1_averaged', 'rw')} with a random walk of the same noise; Simpson, for one call more, "
        f"{span(0, 'simpson', 'mala')} and {span(0, 'simpson', 'rw')}. Its acceptance probability is off by "
        f"{span(1, 'taylor1_averaged', 'mala')} with MALA, Simpson's by {span(1, 'simpson', 'mala')}."
    )


def picture(found: Found, path: Path) -> None:
    """Draw the metrics over steps."""
    sweeps.draw(found, path, list(sweeps.METRICS), "Taylor rules and integrals of the score on Moons")


FIGURE = figures.Figure(
    "taylor", PRESETS, {**sweeps.WORDS, "ratio": ("rule", "kind", "step", "seed")}, stages, cell, section, picture
)
run = FIGURE.run

"""Distances between draws and fresh samples, and their floor."""

from typing import Any

import torch
from torch import Tensor

from scoremh import metrics
from studies.densities.distributions import DISTRIBUTIONS
from studies.densities.fits import blur
from studies.framework import Record
from studies.sinkhorn import paper_metrics
from studies.table1.problem import DATASETS, EVENLY_SPACED, Problem, seeded

MODES = ("moons", "pinwheel")  # datasets with modes, whose density is known mode by mode
METRICS = ("w1", "w2", "mmd", "exact_w1", "exact_w2")


def distances(x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return all metrics between two samples; None where the first is not finite."""
    if not bool(x.isfinite().all()):
        return dict.fromkeys(METRICS)
    return {**paper_metrics(x, y)._asdict(), "exact_w1": metrics.w1(x, y), "exact_w2": metrics.w2(x, y)}


def nearest(x: Tensor, y: Tensor) -> float:
    """Return the median distance of points of x to the nearest of y: 0 for copies."""
    return float(torch.cat([torch.cdist(part, y.to(part)).amin(1) for part in x.split(1000)]).median())


def judged(problem: Problem, draws: Tensor, n: int) -> Record:
    """Return the distances of draws to fresh samples, and how near they come to those that were learned from."""
    y = problem.fresh(n)
    near = nearest(draws, problem.x) if bool(draws.isfinite().all()) else None
    return {**distances(draws, y), "nearest": near, "fresh_nearest": nearest(y, problem.x)}


def floor(problem: Problem, n: int, number: int) -> Record:
    """Return the distances between two fresh samples; and those of independent draws where samples are not so."""
    generator, y = seeded(6, 100 * problem.seed + number), problem.fresh(n)
    found: dict[str, Any] = {**distances(DATASETS[problem.name](n, generator=generator), y)}
    if problem.name in EVENLY_SPACED:
        found["independent"] = distances(independent(problem.name, n, generator), y)
    return found


def independent(name: str, n: int, generator: torch.Generator) -> Tensor:
    """Return n independent draws: where a dataset is evenly spaced, some of a hundred times as many."""
    if name not in EVENLY_SPACED:
        return DATASETS[name](n, generator=generator)
    many = DATASETS[name](100 * n, generator=generator)
    return many[torch.randperm(len(many), generator=generator)[:n]]


def mode_weights(problem: Problem, draws: Tensor) -> Record:
    """Return the share of draws in every mode, and the total variation to those of the distribution, which are equal.

    A draw counts for every mode by the mode's part of the true density there, blurred as the fit is.
    """
    shares = DISTRIBUTIONS[problem.name][1].components(draws, blur(problem.score)).softmax(1).mean(0)
    return {"largest": float(shares.max()), "total_variation": float((shares - 1 / len(shares)).abs().sum()) / 2}

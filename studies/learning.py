"""What several studies share: seeded generators, scores and acceptances that are learned, and the error of a rule."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from scoremh import (
    LineIntegral,
    Recipe,
    ScoreFit,
    Target,
    datasets,
    fit_score,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.types import Point, Proposal, TargetLike

FIGURE_1 = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
DATASETS: dict[str, Callable[..., Tensor]] = {"mixture": FIGURE_1.sample, "moons": datasets.moons}
REFERENCE = LineIntegral("gauss", nodes=16)


def seeded(use: int, seed: int = 1) -> torch.Generator:
    """Return a generator for a use: 0 samples, 1 score, 2 test samples, 3 acceptances, 4 chains, 10 and up own."""
    return torch.Generator().manual_seed(100 * seed + use)


def learned_score(
    dataset: str, folder: Path, *, samples: int, recipe: Recipe | None = None, seed: int = 1
) -> tuple[ScoreFit, Tensor]:
    """Return the score of a dataset, from its file in the folder or learned by the defaults, and its samples."""
    x = DATASETS[dataset](samples, generator=seeded(0, seed))
    path = folder / f"{dataset} {seed}.safetensors"
    if not path.exists():
        fit_score(x, recipe=recipe, generator=seeded(1, seed)).save(path)
    return ScoreFit.load(path), x


@torch.inference_mode()
def metropolis(rule: Rule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> Tensor:
    """Return the Metropolis acceptance probability by a rule, of a candidate inside the support for every point."""
    known = Target(target.score, target.log_density, target.support)
    current = Point.at(x, known, frozenset({"score"}))
    candidates = proposal.sample(current, generator=seeded(4, seed))
    inside = torch.ones(len(x), dtype=torch.bool) if known.support is None else known.support(candidates)
    current, proposed = (
        current.map(lambda part: part[inside]),
        Point.at(candidates[inside], known, frozenset({"score"})),
    )
    return rule.log_ratio(current, proposed, target=known, proposal=proposal).clamp(max=0).exp()


def error(rule: Rule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> float:
    """Return the mean of |a - a_16|, the Metropolis acceptance by a rule and by the line integral with 16 nodes."""
    accept, reference = (metropolis(one, target, proposal, x, seed) for one in (rule, REFERENCE))
    return float((accept - reference).abs().mean())

"""What several studies share: seeded generators, scores and acceptances that are learned, and the error of a rule."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from scoremh import (
    AcceptanceFit,
    BalanceMatching,
    LineIntegral,
    Recipe,
    ScoreFit,
    Target,
    datasets,
    diagnostics,
    fit_acceptance,
    fit_score,
    targets,
)
from scoremh.acceptance import Rule
from scoremh.balance_matching import FormName
from scoremh.networks import AcceptanceMLP
from scoremh.types import Point, Proposal, TargetLike

SAMPLES = 10_000
FIGURE_1 = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
DATASETS: dict[str, Callable[..., Tensor]] = {"mixture": FIGURE_1.sample, "moons": datasets.moons}
PAPER_ENTROPY = BalanceMatching(entropy=2.0)
REFERENCE = LineIntegral("gauss", nodes=16)


def seeded(use: int, seed: int = 1) -> torch.Generator:
    """Return a generator for a use: 0 samples, 1 score, 2 test samples, 3 acceptances, 4 chains, 10 and up own."""
    return torch.Generator().manual_seed(100 * seed + use)


def learned_score(
    dataset: str, folder: Path, *, samples: int | None = None, recipe: Recipe | None = None, seed: int = 1
) -> tuple[ScoreFit, Tensor]:
    """Return the score of a dataset, from its file in the folder or learned by the defaults, and its samples."""
    x = DATASETS[dataset](SAMPLES if samples is None else samples, generator=seeded(0, seed))
    path = folder / f"{dataset}.safetensors"
    if not path.exists():
        fit_score(x, recipe=recipe, generator=seeded(1, seed)).save(path)
    return ScoreFit.load(path), x


def learned_acceptance(
    target: TargetLike,
    proposal: Proposal,
    x: Tensor,
    form: FormName,
    matching: BalanceMatching,
    *,
    recipe: Recipe | None = None,
    seed: int = 1,
) -> AcceptanceFit:
    """Train with the defaults except the matching; with the paper's entropy, from torch's initial weights."""
    net = None
    if matching == PAPER_ENTROPY:
        first = torch.Generator().manual_seed(3 * seed)
        net = AcceptanceMLP(tuple(x.shape[1:]), hidden=128, blocks=2, generator=first)
    options = {"form": form, "matching": matching, "net": net, "recipe": recipe, "generator": seeded(3, seed)}
    return fit_acceptance(target, proposal, x, **options)  # type: ignore[arg-type]


def proposed_pairs(target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> tuple[Point, Point, Target]:
    """Return points, a candidate for each inside the support, and their target."""
    known = Target(target.score, target.log_density, target.support)
    current = Point.at(x, known, frozenset({"score"}))
    candidates = proposal.sample(current, generator=seeded(4, seed))
    inside = torch.ones(len(x), dtype=torch.bool) if known.support is None else known.support(candidates)
    return current.map(lambda part: part[inside]), Point.at(candidates[inside], known, frozenset({"score"})), known


@torch.inference_mode()
def metropolis(rule: Rule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> Tensor:
    """Return the Metropolis acceptance probability by a rule, of a candidate for every point."""
    current, proposed, known = proposed_pairs(target, proposal, x, seed)
    return rule.log_ratio(current, proposed, target=known, proposal=proposal).clamp(max=0).exp()


def error(rule: Rule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> float:
    """Return the mean of |a - a_16|, the Metropolis acceptance by a rule and by the line integral with 16 nodes."""
    accept, reference = (metropolis(one, target, proposal, x, seed) for one in (rule, REFERENCE))
    return float((accept - reference).abs().mean())


def acceptance_rate(rule: Rule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> float:
    """Return the share of candidates that a rule accepts."""
    one = diagnostics.disagreement(rule, rule, target=target, proposal=proposal, x=x, generator=seeded(4, seed))
    return one.acceptance_rates[0]

"""`fit_score`: a score from samples, with everything chosen that is not given."""

from pathlib import Path

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh.networks import InCoordinates
from scoremh.score_matching.fit import ScoreFit
from scoremh.score_matching.losses import MultilevelDenoising
from scoremh.score_matching.noise_level import best_noise_level
from scoremh.score_matching.plan import ScorePlan, score_plan
from scoremh.training import Loss, Recipe, split, train


def fit_score(
    samples: Tensor,
    loss: Loss | None = None,
    net: nn.Module | str | None = None,
    *,
    preset: str | None = None,
    standardize: bool = True,
    heavy_tails: bool = False,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> ScoreFit:
    """Learn the score of the distribution that samples were drawn from.

    With no options: a noise-conditional network in standard coordinates, trained on all noise levels, with averaged
    weights and early stopping, read at the level where held-out samples say that its score is best.

    Args:
        samples: Samples to learn from, `(sample, *event)`.
        loss: Loss to minimise; `MultilevelDenoising` where the network takes a level, `ImplicitScoreMatching` where a
            network is given that does not.
        net: Network, `net(x)` or `net(x, sigma)` for `MultilevelDenoising`, trained in place; one for the loss if None.
            "potential" makes the score the gradient of a scalar network, `NoiseConditionalPotential`, by construction:
            `ScoreFit.potential` is then a log density, up to a constant, that its score never contradicts. A step
            takes twice as long, and at equal time it was no better in the mean: docs/potential-score.md.
        preset: A row of the paper's Table 2 by name, instead of loss, net, standardize and recipe.
        standardize: Whether to learn in coordinates where the samples have mean 0 and unit covariance (unit variance
            on average, beyond 32 coordinates). Noise levels are in these.
        heavy_tails: Whether to learn in coordinates in which tails like powers of x are like those of a normal
            distribution (`Sinh`, then `SquareRoot`): in x the score then falls off as 1 / |x|. The loss is
            `ImplicitScoreMatching` if None, since noise that suits the middle blurs such a tail; the support is wider
            than the samples by a tenth of their range in these coordinates. Long steps want
            `LineIntegral("adaptive", bend=fit.middle)`.
        recipe: How to train.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The score, ready for `metropolis_hastings`, with the box of the samples as its support.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Recipe, datasets, fit_score, metropolis_hastings
        >>> g = torch.Generator().manual_seed(0)
        >>> fit = fit_score(datasets.moons(1000, generator=g), recipe=Recipe(steps=100, check_every=50), generator=g)
        >>> fit.score(torch.zeros(5, 2)).shape
        torch.Size([5, 2])
        >>> kernel = metropolis_hastings(fit, MALA(0.01), LineIntegral())
    """
    plan = score_plan(
        samples,
        loss,
        net,
        preset=preset,
        standardize=standardize,
        heavy_tails=heavy_tails,
        recipe=recipe,
        generator=generator,
    )
    return train_score(plan, generator=generator, progress=progress, checkpoint=checkpoint)


def train_score(
    plan: ScorePlan,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> ScoreFit:
    """Train a score as planned, and return it, read at the noise level where held-out samples say that it is best.

    Args:
        plan: What `score_plan` returned; its network is trained in place.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.
    """
    fit = train(
        plan.net,
        plan.loss,
        plan.data,
        floor=plan.floor,
        recipe=plan.recipe,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
    )
    noise_level = noise_range = None
    if isinstance(plan.loss, MultilevelDenoising):
        held_out = split(plan.data, fit.recipe, fit.seed)[1]
        with rng.for_layers_of(plan.net, 0):
            noise_level = best_noise_level(plan.net, plan.loss.noise_levels(), held_out)
        noise_range = plan.loss.low, plan.loss.high
    whole = plan.net if plan.coordinates is None else InCoordinates(plan.net, plan.coordinates)
    fields = vars(fit) | {"net": whole.requires_grad_(False).eval()}
    fields |= {"noise_level": noise_level, "noise_range": noise_range, "loss": checks.named(plan.loss)}
    return ScoreFit(**fields, support=plan.support)

"""`fit_acceptance`: an acceptance function from a score, with everything chosen that is not given."""

from pathlib import Path

import torch
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh.balance_matching.anchors import anchor_table
from scoremh.balance_matching.fit import AcceptanceFit
from scoremh.balance_matching.losses import BalanceMatching
from scoremh.balance_matching.plan import AcceptancePlan, acceptance_plan
from scoremh.balance_matching.presets import FormName
from scoremh.training import Recipe, train
from scoremh.types import LogDensityFn, Proposal, TargetLike


def fit_acceptance(
    target: TargetLike,
    proposal: Proposal,
    samples: Tensor,
    *,
    form: FormName | None = None,
    matching: BalanceMatching | None = None,
    net: nn.Module | None = None,
    preset: str | None = None,
    standardize: bool = True,
    recipe: Recipe | None = None,
    anchors: LogDensityFn | bool | None = False,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> AcceptanceFit:
    """Learn when to accept: an acceptance function under which a proposal is in detailed balance with a score.

    Args:
        target: Target with a score; pairs outside its support do not count.
        proposal: q. Free and antisymmetric forms need a `log_prob` without jumps that autograd can differentiate, and
            reversible steps: q(x | x') > 0 where q(x' | x) > 0.
        samples: Samples of the target, `(sample, *event)`; those outside the support are left out.
        form: "free" (the paper's), "antisymmetric" or "potential", which is the default.
        matching: The loss and its pairs; `balance_matching.MATCHING[form]` if None, with anchors clipped at 2.5 times
            the root of the number of coordinates of a pair. To change one setting:
            `dataclasses.replace(MATCHING["free"], clip=10.0)`.
        net: `net(proposed, current)` for log a (free) or for half of the log ratio (antisymmetric), `net(x)` for a
            potential, trained in place; one for the form if None.
        preset: A row of the paper's Table 3 by name, instead of form, matching, net, standardize and recipe.
        standardize: Whether the network sees coordinates in which the samples have mean 0 and unit covariance.
        recipe: How to train; `balance_matching.RECIPE` if None.
        anchors: Function x -> log p(x), up to a constant, such as `fit.log_density` of a learned score, or True for
            log p through noise of a target that knows noise levels: its values at thousands of points on, between and
            around the samples join the loss, with the weight `matching.anchor_weight`. Gradients alone leave the
            weights of modes open that lie far from each other.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The acceptance function, for `Learned`.

    Example:
        >>> import torch
        >>> from scoremh import Learned, RandomWalk, Recipe, fit_acceptance, metropolis_hastings, targets
        >>> g, normal = torch.Generator().manual_seed(0), targets.Gaussian([0.0, 0.0])
        >>> x, short = normal.sample(1000, generator=g), Recipe(steps=20, check_every=10)
        >>> fit = fit_acceptance(normal, RandomWalk(1.0), x, form="antisymmetric", recipe=short, generator=g)
        >>> kernel = metropolis_hastings(normal, RandomWalk(1.0), Learned(fit, balance="metropolis"))
    """
    plan = acceptance_plan(
        target,
        proposal,
        samples,
        form=form,
        matching=matching,
        net=net,
        preset=preset,
        standardize=standardize,
        recipe=recipe,
        anchors=anchors,
        generator=generator,
    )
    return train_acceptance(plan, generator=generator, progress=progress, checkpoint=checkpoint)


def train_acceptance(
    plan: AcceptancePlan,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> AcceptanceFit:
    """Train an acceptance as planned, and return it.

    Args:
        plan: What `acceptance_plan` returned; its network is trained in place.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.
    """
    loss = plan.loss
    if plan.anchors is not None:
        table = anchor_table(plan.anchors, loss.target, loss.proposal, plan.samples, plan.form, progress=progress)
        loss = loss.anchored(table)
    fit = train(
        plan.form,
        loss,
        plan.samples,
        recipe=plan.recipe,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
    )
    return AcceptanceFit(**vars(fit), loss=checks.named(loss.matching), proposal=checks.named(loss.proposal))

"""Whether a target, a proposal and a rule fit together: refused where the kernel is built, or where it is first run."""

import warnings

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh.acceptance import LineIntegral, Taylor, TwoCoin
from scoremh.proposals import MALA, ScaledMALA, StudentWalk
from scoremh.targets.parts import WeightedSum
from scoremh.targets.propriety import share_outward
from scoremh.types import Acceptance, Need, Point, Proposal, Target

MAX_LONG_FREEDOM = 4  # degrees of freedom up to which steps are now and then very long


class DegenerateRuleWarning(UserWarning):
    """A proposal and a rule that do not go together: the density enters the decision no longer, or only by luck."""


class ImproperTargetWarning(UserWarning):
    """A product with negative weights that grows in its tails: it cannot be normalised, and its chains run away."""


def warn_if_degenerate(proposal: Proposal, acceptance: Acceptance) -> None:
    """Warn where the trapezoid meets MALA, whose q ratio holds the same terms, and a straight line very long steps."""
    if isinstance(proposal, MALA | ScaledMALA) and _is_trapezoid(acceptance):
        plain = isinstance(proposal, MALA)
        ratio = "(h / 4) (|s(x)|^2 - |s(x')|^2)" if plain else "a function of h(x), h(x') and |x' - x|"
        text = (
            f"{acceptance} with {type(proposal).__name__} is degenerate: log r = {ratio} exactly, so the density "
            'cancels and the rule only prefers small scores. Use LineIntegral("simpson"), one score call more.'
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)
    if isinstance(proposal, StudentWalk) and proposal.freedom <= MAX_LONG_FREEDOM and _is_straight(acceptance):
        text = (
            f"{acceptance} with StudentWalk is wrong where tails are heavy: on a straight line, its nodes miss the "
            'middle of the distribution that a long step crosses. Use LineIntegral("adaptive", bend=fit.middle), or '
            "bend=(m, w) with a middle and a width of your own; or RandomWalk where tails are light."
        )
        warnings.warn(text, DegenerateRuleWarning, stacklevel=3)


def _is_trapezoid(acceptance: Acceptance) -> bool:
    if isinstance(acceptance, Taylor):
        return acceptance.order == 1 and acceptance.average
    return isinstance(acceptance, LineIntegral) and acceptance.rule == "trapezoid" and acceptance.inner_nodes == 0


def _is_straight(acceptance: Acceptance) -> bool:
    return isinstance(acceptance, Taylor | TwoCoin) or (
        isinstance(acceptance, LineIntegral) and acceptance.bend is None
    )


@torch.inference_mode()
def first_point(target: Target, needs: frozenset[Need], x: Tensor) -> Point:
    """Return the point that chains start from, having refused a bad start and wrong answers of the target."""
    check_start(target, x)
    with checks.explained():
        point = Point.at(x.clone(), target, needs)
    check_answers(point)
    warn_if_improper(target, x)
    return point


def warn_if_improper(target: Target, x: Tensor) -> None:
    """Warn where a product with negative weights does not fall far out from the initial points x."""
    scores = [score for score in (target.score, target.known_score) if score is not None]
    if target.support is not None or not any(isinstance(score, WeightedSum) and score.divides for score in scores):
        return
    outward = share_outward(lambda x: torch.stack([score(x) for score in scores]).sum(0), x)
    if outward > 0:
        text = (
            f"A product with negative weights does not fall fast enough to be normalised in {outward:.0%} of the "
            "directions far out from the initial points: its chains may run away. Give less weight to what is divided "
            "by, or truncate it to a support."
        )
        warnings.warn(text, ImproperTargetWarning, stacklevel=4)


def check_start(target: Target, x: Tensor) -> None:
    """Refuse initial points that are no chains, not finite, or outside the support."""
    checks.events(x, "initial")
    if target.support is None:
        return
    inside = checks.inside(target.support(x), x)
    if not inside.all():
        outside = (~inside).nonzero().flatten()
        fix = f"Start where p(x) > 0; the first outside is initial[{int(outside[0])}]."
        got = f"{len(outside)} of {len(x)} outside"
        raise ValueError(checks.message("initial points inside the target's support", got, fix))


def check_answers(point: Point) -> None:
    """Refuse a score or log density of a wrong shape, dtype or device, and a start where p is 0."""
    x = point.x
    if point.score is not None:
        checks.answer(point.score, x, x.shape, "score")
    if point.log_density is not None:
        checks.answer(point.log_density, x, x.shape[:1], "log_density")
        bad = (~point.log_density.isfinite()).nonzero().flatten()
        if len(bad):
            got = f"{len(bad)} of {len(x)} with a log density that is not finite"
            fix = f"Start where p(x) > 0; the first such is initial[{int(bad[0])}]."
            raise ValueError(checks.message("initial points of positive density", got, fix))

"""Residuals of detailed balance: the log ratio of a learned acceptance minus that of the score or the log density.

With D_a = log a(x', x) - log a(x, x'), detailed balance is D_a = log r. The line integral of the score gives log r; if
the target has a log density, its log r is compared too.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.algebra import Quadrature, gauss_legendre, inner, scores_along, weighted_sum, whole_way
from scoremh._shared.checks import Samples, as_tensor
from scoremh.kernel.metropolis import scored_target
from scoremh.networks import Form
from scoremh.training import Fit
from scoremh.types import Need, Point, Proposal, Target, TargetLike

MAX_WORST_PAIRS = 5  # number of pairs to report


@dataclass(frozen=True, eq=False)
class Comparison:
    """Residuals D_a - log r over pairs, in log units."""

    rms: float
    bias: float
    correlation: float
    worst: tuple[float, ...]
    worst_pairs: Tensor

    def __str__(self) -> str:
        """Return the residuals on one line."""
        return (
            f"rms {self.rms:.3g}, bias {self.bias:.3g}, correlation {self.correlation:.4f}, worst {self.worst[0]:.3g}"
        )


@dataclass(frozen=True)
class Distance:
    """Residuals of the pairs whose distance |x' - x| lies between two numbers."""

    low: float
    high: float
    pairs: int
    rms: float
    bias: float


@dataclass(frozen=True, eq=False)
class BalanceResidual:
    """How far detailed balance is from holding; prints as a table by distance.

    Args:
        integral: Residuals against the line integral of the score.
        density: Residuals against the target's log density; None if it has none.
        distances: Residuals against the line integral, by |x' - x|, in groups of equal size.
        pairs: Number of pairs; candidates outside the support are left out.
        without_way: Number of further pairs that were compared with the log density only, because the line between
            their points leaves the support.
    """

    integral: Comparison
    density: Comparison | None
    distances: tuple[Distance, ...]
    pairs: int
    without_way: int = 0

    def __str__(self) -> str:
        """Return the residuals as a few lines."""
        more = f", and {self.without_way} whose line leaves the support" if self.without_way else ""
        lines = [f"balance of {self.pairs} pairs{more}, in log units", f"  against the line integral: {self.integral}"]
        if self.density is not None:
            lines.append(f"  against the log density:   {self.density}")
        lines += [
            f"  |x' - x| in [{d.low:.3g}, {d.high:.3g}]: rms {d.rms:.3g}, bias {d.bias:.3g}" for d in self.distances
        ]
        return "\n".join(lines)


@torch.inference_mode()
def balance_residual(
    net: Any,
    target: TargetLike,
    proposal: Proposal,
    samples: Samples,
    *,
    nodes: int = 16,
    groups: int = 5,
    generator: torch.Generator | None = None,
) -> BalanceResidual:
    """Measure how far a learned acceptance is from detailed balance, on new pairs.

    Args:
        net: A network that returns log a as `net(proposed, current)`, a potential, or the result of `fit_acceptance`.
        target: Target whose score, and log density if it has one, give the ratio to compare with.
        proposal: Proposal that draws a candidate for every sample.
        samples: Samples of the target, `(sample, *event)`, that were not used for training.
        nodes: Number of nodes of the Gauss-Legendre rule that integrates the score.
        groups: Number of groups into which the pairs are divided by distance.
        generator: Random number generator; the same seed gives the same candidates.

    Returns:
        Residuals in log units: 0.1 means that a ratio is wrong by about 10 %.
    """
    samples = as_tensor(samples, "samples", torch.get_default_dtype())
    checks.events(samples, "samples")
    checks.count(nodes, "nodes")
    checks.count(groups, "groups")
    form = _form(net)
    known = scored_target(target, proposal)
    form.require(known, proposal)
    pairs = _pairs(known, proposal, samples, gauss_legendre(nodes), groups, generator)
    log_q = proposal.log_q_ratio(pairs.current, pairs.proposed)
    learned = form.log_ratio(pairs.current, pairs.proposed, proposal=proposal)
    _require_finite("the score", pairs.change, "Give the target a support; pairs outside are left out.")
    _require_finite("log q", log_q, "Use a proposal with reversible steps: q(x | x') > 0 where q(x' | x) > 0.")
    _require_finite("the network", learned, "Train it again.")
    x, y, ways = pairs.current.x, pairs.proposed.x, pairs.ways
    density, before, after = None, pairs.current.log_density, pairs.proposed.log_density
    if before is not None and after is not None:
        density = _compare(learned, after - before + log_q, x, y)
    distance, order = (y[ways] - x[ways]).flatten(1).norm(dim=1).sort()
    residual = (learned[ways] - pairs.change - log_q[ways])[order]
    parts = zip(distance.tensor_split(groups), residual.tensor_split(groups), strict=True)
    return BalanceResidual(
        integral=_compare(learned[ways], pairs.change + log_q[ways], x[ways], y[ways]),
        density=density,
        distances=tuple(Distance(float(d[0]), float(d[-1]), len(d), _rms(r), float(r.mean())) for d, r in parts),
        pairs=len(distance),
        without_way=len(ways) - len(distance),
    )


def _form(net: Any) -> Form:
    """Return a network, or the network of a fit, as a form; raise an error for a fit of something else."""
    network: Any = net.net if isinstance(net, Fit) else net
    kind = nn.Module if network is net else Form  # any network may be an acceptance; a fit knows what it fitted
    checks.kind(network, kind, "a network for an acceptance", "Pass the result of fit_acceptance, or its net.")
    return Form.of(network)


class _Pairs(NamedTuple):
    """Pairs inside the support, with the line integral of the score."""

    current: Point
    proposed: Point
    ways: Tensor
    """Whether the line between the points stays inside the support, so that the score can be integrated."""
    change: Tensor
    """log p(x') - log p(x) of these pairs, by the line integral."""


def _pairs(
    target: Target,
    proposal: Proposal,
    samples: Tensor,
    rule: Quadrature,
    groups: int,
    generator: torch.Generator | None,
) -> _Pairs:
    """Draw a candidate for every sample, and integrate the score along the line to it."""
    assert target.score is not None
    needs: frozenset[Need] = proposal.needs | {"score", "log_density"}  # None if the target lacks it
    if target.support is not None:
        samples = samples[checks.inside(target.support(samples), samples)]
    with checks.explained():
        current = Point.at(samples, target, needs)
    candidates = proposal.sample(current, generator=rng.resolve(generator, samples.device))
    ways = torch.ones(len(candidates), dtype=torch.bool, device=candidates.device)
    if target.support is not None:
        inside = target.support(candidates)
        current, candidates = current.map(lambda part: part[inside]), candidates[inside]
        ways = whole_way(target.support, current.x, candidates - current.x, rule.nodes)
    if int(ways.sum()) < max(2, groups):
        got, fix = (
            f"{int(ways.sum())} pairs for {groups} groups",
            "Pass more samples of the target, or use a smaller step.",
        )
        raise ValueError(checks.message("at least two pairs, and one for every group", got, fix))
    proposed = Point.at(candidates, target, needs)
    x, v = current.x[ways], candidates[ways] - current.x[ways]
    change = inner(weighted_sum(rule.weights, scores_along(target.score, x, v, rule.nodes)), v)
    return _Pairs(current, proposed, ways, change)


def _require_finite(name: str, values: Tensor, fix: str) -> None:
    """Raise an error unless all values are finite."""
    if not values.isfinite().all():
        got = f"{int((~values.isfinite()).sum())} of {len(values)} that are not finite"
        raise ValueError(checks.message(f"finite values of {name} for every pair", got, fix))


def _rms(residual: Tensor) -> float:
    """Return the root mean square."""
    return math.sqrt(float(residual.double().square().mean()))


def _compare(learned: Tensor, true: Tensor, current: Tensor, proposed: Tensor) -> Comparison:
    """Return the residuals of log ratios over pairs."""
    residual = learned - true
    rows = residual.abs().argsort(descending=True)[:MAX_WORST_PAIRS]
    both = torch.stack([learned.double(), true.double()])
    return Comparison(
        rms=_rms(residual),
        bias=float(residual.mean()),
        correlation=float(torch.corrcoef(both)[0, 1]),
        worst=tuple(residual[rows].tolist()),
        worst_pairs=torch.stack([current[rows], proposed[rows]], 1),
    )

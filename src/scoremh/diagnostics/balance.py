"""Is a learned acceptance in balance? Its log ratio beside the one the score, or the density, gives.

With D_a = log a(x', x) - log a(x, x'), balance is D_a = log r. A score gives log r by its line integral; where the
target has a log density as well, that is compared too.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks, detailed_balance, rng
from scoremh._shared.algebra import gauss_legendre, inner, scores_along, weighted_sum, whole_way
from scoremh._shared.transition import with_score
from scoremh.networks import Form
from scoremh.types import Need, Point, Proposal, TargetLike

WORST = 5  # pairs shown


@dataclass(frozen=True, eq=False)
class Comparison:
    """Residuals D_a - log r over pairs, in log units.

    Args:
        rms: Root of their mean square.
        bias: Their mean.
        correlation: Of D_a with log r.
        worst: The largest, with their signs.
        worst_pairs: Where they are: `(pair, 2, *event)`, x and x'.
    """

    rms: float
    bias: float
    correlation: float
    worst: tuple[float, ...]
    worst_pairs: Tensor

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"rms {self.rms:.3g}, bias {self.bias:.3g}, correlation {self.correlation:.4f}, worst {self.worst[0]:.3g}"
        )


@dataclass(frozen=True)
class Distance:
    """Residuals of the pairs whose distance |x' - x| is between two numbers.

    Args:
        low: The one.
        high: The other.
        pairs: How many there are.
        rms: Root of the mean square of their residuals.
        bias: Mean of their residuals.
    """

    low: float
    high: float
    pairs: int
    rms: float
    bias: float


@dataclass(frozen=True, eq=False)
class BalanceResidual:
    """How far detailed balance is from holding. Printing it shows a table by distance.

    Args:
        integral: Against the line integral of the score.
        density: Against the target's log density; None where it has none.
        distances: The residuals against the line integral, by |x' - x|, in groups of equal size.
        pairs: How many were judged; candidates outside the support are left out.
        without_way: How many more were judged by the density alone: the straight way to them leaves the support.
    """

    integral: Comparison
    density: Comparison | None
    distances: tuple[Distance, ...]
    pairs: int
    without_way: int = 0

    def __str__(self) -> str:
        """Say it in a few lines."""
        more = f", and {self.without_way} without a way inside the support" if self.without_way else ""
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
    samples: Float[Tensor, "sample *event"],
    *,
    nodes: int = 16,
    groups: int = 5,
    generator: torch.Generator | None = None,
) -> BalanceResidual:
    """Measure how far a learned acceptance is from detailed balance, on pairs it has not seen.

    Args:
        net: A network that answers log a as `net(proposed, current)`, a potential, or what `fit_acceptance` returned.
        target: Its score, and its log density where it has one, give the ratio to compare with.
        proposal: Draws a candidate for every sample.
        samples: Of the target, and not of the training.
        nodes: Of the Gauss-Legendre rule that integrates the score.
        groups: Into how many the pairs are divided by distance.
        generator: Source of randomness.

    Returns:
        Residuals in log units: 0.1 is a ratio wrong by a tenth.
    """
    checks.events(samples, "samples")
    checks.count(nodes, "nodes")
    checks.count(groups, "groups")
    network: Any = net if isinstance(net, nn.Module) else getattr(net, "net", net)
    kind = nn.Module if network is net else Form  # any network may be one; a fit says what it is of
    checks.kind(network, kind, "a network for an acceptance", "Pass what fit_acceptance returned, or its net.")
    known = with_score(target, proposal)
    assert known.score is not None
    if isinstance(network, Form):
        network.require(known, proposal)
    needs: frozenset[Need] = proposal.needs | {"score", "log_density"}  # what the target does not have stays None
    if known.support is not None:
        samples = samples[checks.inside(known.support(samples), samples)]
    with checks.explained():
        current = Point.at(samples, known, needs)
    candidates = proposal.sample(current, generator=rng.resolve(generator, samples.device))
    _, places, weights = gauss_legendre(nodes)
    ways = torch.ones(len(candidates), dtype=torch.bool, device=candidates.device)  # to integrate the score along
    if known.support is not None:
        inside = known.support(candidates)
        current, candidates = current.map(lambda part: part[inside]), candidates[inside]
        ways = whole_way(known.support, current.x, candidates - current.x, places)
    if int(ways.sum()) < max(2, groups):
        got = f"{int(ways.sum())} pairs for {groups} groups"
        fix = "Bring more samples of the target, or a smaller step."
        raise ValueError(checks.message("two pairs, and one for every group", got, fix))
    proposed = Point.at(candidates, known, needs)
    log_q = detailed_balance.log_q_ratio(proposal, current, proposed)
    learned = detailed_balance.log_ratio(network, proposal, current, proposed)
    x, y = current.x[ways], proposed.x[ways]
    v = y - x
    change = inner(weighted_sum(weights, scores_along(known.score, x, v, places)), v)
    for name, values, fix in (
        ("the score", change, "Give the target a support, outside of which no pair counts."),
        ("log q", log_q, "Use a proposal whose steps can be taken back."),
        ("the network", learned, "Train it again."),
    ):
        if not values.isfinite().all():
            got = f"{int((~values.isfinite()).sum())} of {len(values)} that are not, of {name}"
            raise ValueError(checks.message("finite numbers for every pair", got, fix))
    density = None
    if current.log_density is not None and proposed.log_density is not None:
        density = _compare(learned, proposed.log_density - current.log_density + log_q, current.x, proposed.x)
    distance, order = v.flatten(1).norm(dim=1).sort()
    residual = (learned[ways] - change - log_q[ways])[order]
    parts = zip(distance.tensor_split(groups), residual.tensor_split(groups), strict=True)
    return BalanceResidual(
        integral=_compare(learned[ways], change + log_q[ways], x, y),
        density=density,
        distances=tuple(Distance(float(d[0]), float(d[-1]), len(d), _rms(r), float(r.mean())) for d, r in parts),
        pairs=len(v),
        without_way=len(ways) - len(v),
    )


def _rms(residual: Tensor) -> float:
    return math.sqrt(float(residual.double().square().mean()))


def _compare(learned: Tensor, true: Tensor, current: Tensor, proposed: Tensor) -> Comparison:
    residual = learned - true
    rows = residual.abs().argsort(descending=True)[:WORST]
    both = torch.stack([learned.double(), true.double()])
    return Comparison(
        rms=_rms(residual),
        bias=float(residual.mean()),
        correlation=float(torch.corrcoef(both)[0, 1]),
        worst=tuple(residual[rows].tolist()),
        worst_pairs=torch.stack([current[rows], proposed[rows]], 1),
    )

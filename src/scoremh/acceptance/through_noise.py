"""Decide by a log density that is integrated along the noise axis, where the scores of all noise levels are known."""

from dataclasses import dataclass
from typing import ClassVar, get_args

from jaxtyping import Float
from torch import Tensor

from scoremh import diffusion
from scoremh._shared import checks
from scoremh._shared.algebra import inner
from scoremh.acceptance.integrals import LineIntegral
from scoremh.acceptance.ratio import RatioRule
from scoremh.types import Balance, Need, Point, Proposal, Target


@dataclass(frozen=True, repr=False)
class ThroughNoise(RatioRule):
    """Use log p as the scores of all noise levels know it: the weights of modes are right however far apart they lie.

    The estimate is a fixed function of x, so that the chain is reversible for its own distribution, as `Exact` is for
    that of a density. It is evaluated once per candidate, at `nodes` noise levels, and kept at the current point.

    For short moves an integral of the score along the line has the smaller error. With `integrate_below` the line is
    taken for moves that are shorter than this, a symmetric choice: the ratio stays antisymmetric, and every pair of
    points is balanced for one of two densities. Where those two disagree no distribution is stationary for both, and
    the chain settles between them.

    Args:
        nodes: Number of noise levels at which the score and its divergence are evaluated.
        path: "radial", or "fixed" at x, which wants half as many nodes again.
        integrate_below: Length of a move, in units of the noise, below which the score is integrated by Simpson's rule.
        balance: "metropolis" or "barker".
    """

    nodes: int = 8
    path: diffusion.Path = "radial"
    integrate_below: float | None = None
    balance: Balance = "metropolis"

    LINE: ClassVar[LineIntegral] = LineIntegral()

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        checks.count(self.nodes, "nodes")
        checks.one_of(self.path, get_args(diffusion.Path), "path")
        checks.one_of(self.balance, get_args(Balance), "balance")
        if self.integrate_below is not None:
            checks.positive(self.integrate_below, "integrate_below", ", or None to integrate nowhere")

    @property
    def needs(self) -> frozenset[Need]:
        """The log density, and the score where short moves are integrated."""
        return frozenset({"log_density"}) if self.integrate_below is None else self.LINE.needs | {"log_density"}

    def known(self, target: Target) -> Target:
        """Return the target with log p through noise for its log density, having refused one without noise levels."""
        if target.levels is None:
            fix = "Use what fit_score returns, a model of scoremh.diffusion or a normal mixture; or LineIntegral()."
            raise ValueError(
                checks.message(
                    "a target that knows the scores of all noise levels", "a score of one level, or a product", fix
                )
            )
        low, high = diffusion.noise_span(target.levels)
        target.levels.at(low), target.levels.at(high)  # refuse levels that were not learned
        return target._replace(log_density=diffusion.LogDensity(target.levels, self.nodes, self.path))

    def require(self, target: Target, proposal: Proposal) -> None:
        """Accept every proposal."""

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Float[Tensor, " chain"]:
        """Return log p(proposed) - log p(current)."""
        assert current.log_density is not None
        assert proposed.log_density is not None
        change = proposed.log_density - current.log_density
        if self.integrate_below is None:
            return change
        assert target.levels is not None
        v = target.levels.coordinates.inverse(proposed.x) - target.levels.coordinates.inverse(current.x)
        rows = (inner(v, v) < self.integrate_below**2).nonzero().flatten()
        if len(rows):
            ends = (point.map(lambda part: part[rows]) for point in (current, proposed))
            change = change.index_put((rows,), self.LINE.log_density_change(*ends, target=target))
        return change

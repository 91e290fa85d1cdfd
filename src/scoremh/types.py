"""The vocabulary: what is known of a distribution, where the chains are, what moved, and the parts of a kernel.

A transition of Metropolis-Hastings from `x` proposes `x' ~ q(. | x)` and accepts it with probability `a(x', x)`.
The first axis of every tensor is the chain; what follows is one event of any shape. Log quantities are `(chain,)`.

Supports, outside of which a density is 0: the paper's truncated p* (section 3.3).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.checks import Values, written
from scoremh.coordinates import Coordinates

ScoreFn = Callable[[Tensor], Tensor]
LogDensityFn = Callable[[Tensor], Tensor]
SupportFn = Callable[[Tensor], Tensor]
Balance = Literal["metropolis", "barker"]
# Where most of a heavy-tailed distribution lies, and how wide that is: numbers, or tuples over the flattened event.
Middle = tuple[float | tuple[float, ...], float | tuple[float, ...]]

# What a proposal or a rule asks of the target. Kept at every point are "score", "log_density" and, of a product, the
# "rest_score" of what `log_density` leaves out; "inner_score" is asked for on the way from one point to the next.
Need = Literal["score", "inner_score", "log_density", "rest_score"]


class Target(NamedTuple):
    """What is known of p. Any object with the first three attributes serves as one."""

    score: ScoreFn | None = None
    """x -> grad log p(x), batched, from `(chain, *event)` to the same shape."""
    log_density: LogDensityFn | None = None
    """x -> log p(x) + const, `(chain,)`."""
    support: SupportFn | None = None
    """x -> bool, `(chain,)`; outside it p is 0. The paper's truncated density p*."""
    known_score: ScoreFn | None = None
    """Set by a kernel, for products: the score of the parts that `log_density` stands for; `score` is of the others."""
    levels: "ScoreModel | None" = None
    """The scores at every noise level that this target is one level of, for `ThroughNoise`."""

    def __add__(self, other: object) -> "Target":
        raise _no_arithmetic(f"a Target + {type(other).__name__}")

    def __radd__(self, other: object) -> "Target":
        raise _no_arithmetic(f"{type(other).__name__} + a Target")

    def __mul__(self, other: object) -> "Target":
        raise _no_arithmetic(f"a Target * {type(other).__name__}")

    def __rmul__(self, other: object) -> "Target":
        raise _no_arithmetic(f"{type(other).__name__} * a Target")


def _no_arithmetic(got: str) -> TypeError:
    fix = "Use targets.product(a, b) for a product of densities, or targets.temper(a, power) for a power."
    return TypeError(checks.message("one Target", got, fix))


@runtime_checkable
class TargetLike(Protocol):
    """A `Target`, or anything that has its three attributes (all of `scoremh.targets` do)."""

    @property
    def score(self) -> ScoreFn | None:
        """Grad log p, or None."""

    @property
    def log_density(self) -> LogDensityFn | None:
        """Log p up to a constant, or None."""

    @property
    def support(self) -> SupportFn | None:
        """Where p is positive, or None for everywhere."""


@runtime_checkable
class ScoreModel(Protocol):
    """The scores of all p * N(0, sigma^2 I) in coordinates u: of `fit_score`, a diffusion model, a normal mixture."""

    @property
    def noise_level(self) -> float | None:
        """The noise level at which the model is read, in units of u; None where it knows no levels."""

    @property
    def noise_range(self) -> tuple[float, float] | None:
        """The lowest and the highest noise level that the model knows; None where it knows no levels."""

    @property
    def coordinates(self) -> Coordinates:
        """The map x = f(u) from coordinates in which noise of level sigma is sigma z, and p has mean 0."""

    @property
    def variance(self) -> float:
        """The variance of p in the coordinates u, a mean over them."""

    @property
    def event(self) -> Tensor | None:
        """An event of the shape, dtype and device of the data, with any values; None where the model knows none."""

    @property
    def standard(self) -> "ScoreModel":
        """The same model in the coordinates u."""

    def at(self, noise_level: float) -> TargetLike:
        """Return the distribution blurred by noise of this level, as a target."""

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score at noise level sigma, a number or one per chain, and its divergence."""


@runtime_checkable
class PartlyKnown(TargetLike, Protocol):
    """A target whose log density is known in part (`targets.product`): log p = known + what has this rest score."""

    @property
    def known(self) -> Target:
        """Score and log density of the parts that have a log density."""

    @property
    def rest_score(self) -> ScoreFn | None:
        """Score of the other parts, or None where there are none."""


class Point(NamedTuple):
    """One position per chain, with what the next transition needs there; the rest is None."""

    x: Float[Tensor, "chain *event"]
    score: Float[Tensor, "chain *event"] | None = None
    log_density: Float[Tensor, " chain"] | None = None
    rest_score: Float[Tensor, "chain *event"] | None = None

    @classmethod
    def at(cls, x: Tensor, target: Target, needs: frozenset[Need]) -> "Point":
        """Evaluate at x what is needed, and nothing else."""
        score = target.score(x) if target.score is not None and needs & {"score", "rest_score"} else None
        log_density = target.log_density(x) if target.log_density is not None and "log_density" in needs else None
        if score is None or target.known_score is None:
            return cls(x, score, log_density)
        total = score + target.known_score(x) if "score" in needs else None
        return cls(x, total, log_density, score if "rest_score" in needs else None)

    def map(self, function: Callable[..., Tensor], *others: "Point") -> "Point":
        """Apply a function to each part that is there, of this point and the others together."""
        x, *rest = zip(self, *others, strict=True)
        return Point(function(*x), *(None if parts[0] is None else function(*parts) for parts in rest))


class Move(NamedTuple):
    """What happened in one transition. The next one needs none of it."""

    proposed: Float[Tensor, "chain *event"]
    """The candidate, accepted or not."""
    log_accept: Float[Tensor, " chain"]
    """log a(x', x); -inf where p(x') is 0, NaN where a number was not finite. Both are rejections."""
    accepted: Bool[Tensor, " chain"]
    score_calls: int = 0
    """At how many points the score was evaluated, over all chains."""
    factors: int = 0
    """How many random factors the rule drew, over all chains."""
    clipped: int = 0
    """How many of them it clipped to their bound: where it did, it decided for another ratio."""


class Trace(NamedTuple):
    """Several transitions in a row; the first axis is the step."""

    x: Float[Tensor, "step chain *event"]
    """Where the chains were after each step."""
    log_accept: Float[Tensor, "step chain"]
    accepted: Bool[Tensor, "step chain"]
    score_calls: int = 0
    factors: int = 0
    clipped: int = 0


@dataclass
class Tally:
    """What a rule with random factors counts for the kernel that hands it over, as `Move` and `Trace` report it."""

    factors: int = 0
    clipped: int = 0

    def add(self, clipped: Bool[Tensor, " factor"]) -> None:
        """Count factors, and those of them that were clipped."""
        self.factors += len(clipped)
        self.clipped += int(clipped.sum())


@runtime_checkable
class Proposal(Protocol):
    """q(x' | x)."""

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be known at, or between, the points."""

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given), differentiable in both."""


@runtime_checkable
class Acceptance(Protocol):
    """a(x', x), the probability of taking the proposed point."""

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be known at, or between, the points."""

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a(proposed, current), at most 0."""


@runtime_checkable
class DecidingAcceptance(Acceptance, Protocol):
    """A rule that saves work where the uniform number decides; a random one draws from the generator only."""

    def log_accept_against(
        self,
        current: Point,
        proposed: Point,
        log_uniform: Tensor,
        *,
        target: Target,
        proposal: Proposal,
        generator: torch.Generator | None = None,
        tally: Tally | None = None,
    ) -> Float[Tensor, " chain"]:
        """Return log a(proposed, current), as exactly as a comparison with `log_uniform` needs it; tally factors."""


@runtime_checkable
class InformedAcceptance(Acceptance, Protocol):
    """A rule that knows more of p than the target, or that was made for some proposals only."""

    def known(self, target: Target) -> Target:
        """Return the target with what the rule adds to it."""

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that the rule was not made for; it has what it needs of the target."""


@runtime_checkable
class AcceptanceNetwork(Protocol):
    """A network for an acceptance function that says what ratio it stands for, and for which proposals."""

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> Float[Tensor, " chain"]:
        """Return log r(proposed, current)."""

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that the network was not learned for."""


@runtime_checkable
class Step(Protocol):
    """One transition."""

    def __call__(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Return where the chains are then, and what happened."""


@runtime_checkable
class Run(Protocol):
    """Several transitions."""

    def __call__(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Return where the chains are then, and what happened at every step."""


class Kernel(NamedTuple):
    """A Markov kernel: `point = init(x)`, then `point, move = step(point, generator=g)`."""

    init: Callable[[Tensor], Point]
    step: Step
    run: Run | None = None
    """Several steps at once, where that is faster than calling `step`; the same Markov chain, not the same bits."""
    target_rate: float | None = None
    """The acceptance rate at which this kernel is most efficient; `tune` aims at it."""
    least_steps: int = 1
    """`run` is asked for multiples of this many steps, but for the last: where steps belong together in groups."""
    parts: tuple[object, ...] = ("a kernel",)
    """What the kernel is made of: its proposal and its rule."""
    unadjusted: Callable[[], "Kernel"] | None = None
    """Builds the kernel of the same moves without an accept step; None where the moves do not follow the score."""
    target: Target | None = None
    """What its parts ask of p, its score only where one of them needs it; None for a kernel that does not say."""

    @property
    def description(self) -> str:
        """The parts as text, written when somebody asks: it may hash the weights of a network."""
        return " with ".join(part if isinstance(part, str) else checks.named(part) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Box:
    """The support low <= x <= high; made by `box`."""

    low: Tensor
    high: Tensor

    def __call__(self, x: Float[Tensor, "chain *event"]) -> Bool[Tensor, " chain"]:
        """Return whether every coordinate lies between the bounds."""
        for bound in (self.low, self.high):
            require_event(x, bound.shape or x.shape[1:])
        return ((self.low.to(x) <= x) & (x <= self.high.to(x))).flatten(1).all(1)


def box(low: Values, high: Values) -> Box:
    """Return the support of all x between two bounds, each a number (for every coordinate) or event-shaped.

    >>> box(0.0, [1.0, 2.0])(torch.tensor([[0.5, 1.5], [1.5, 0.5]]))
    tensor([ True, False])
    """
    # Numbers are kept in float64: the bound 0.1 shall not become that of float32 when x is in float64.
    bounds = [b.clone() if isinstance(b, Tensor) else torch.tensor(b, dtype=torch.float64) for b in (low, high)]
    if not (bounds[0] < bounds[1]).all():
        got = f"low={bounds[0].tolist()} and high={bounds[1].tolist()}"
        raise ValueError(checks.message("low below high in every coordinate", got, "Swap or correct the bounds."))
    return Box(*bounds)


def require_event(x: Tensor, event: tuple[int, ...]) -> None:
    """Refuse an x whose events have another shape: it would broadcast silently."""
    if x.shape[1:] != event:
        fix = "The first axis is the chain; the rest is one event."
        raise ValueError(checks.message(f"x of shape {written('chain', *event)}", checks.describe(x), fix))

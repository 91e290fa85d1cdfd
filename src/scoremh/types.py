"""The vocabulary: targets, points, moves and kernels.

A transition of Metropolis-Hastings from `x` proposes `x' ~ q(. | x)` and accepts it with probability `a(x', x)`.
The first axis of every tensor is the chain; the others are one event of any shape. Log quantities are `(chain,)`.

| name | contents |
|---|---|
| `Target` | the known functions of p: score, log density, support |
| `Point` | one position per chain, with the values that the next transition needs there |
| `Move`, `Trace` | the record of one transition, and of several |
| `Proposal` | base class of the proposals in `scoremh.proposals` |
| `Kernel` | `point = init(x)`, then `point, move = step(point, generator=g)` |

The base class of the acceptance rules is `scoremh.Rule`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

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
# Location and width of the bulk of a heavy-tailed distribution: numbers, or tuples over the flattened event.
Middle = tuple[float | tuple[float, ...], float | tuple[float, ...]]

# Functions of the target that a proposal or a rule needs: "score" and "log_density" at every point; "inner_score", the
# score between the points; for a product with known parts "rest_score", the score of the other parts at every point.
Need = Literal["score", "inner_score", "log_density", "rest_score"]


class Target(NamedTuple):
    """The known functions of p. Any object with the first three attributes can be used as a target."""

    score: ScoreFn | None = None
    """x -> grad log p(x), batched, from `(chain, *event)` to the same shape.

    In a kernel for a product: the score of the parts without a log density only; see `known_score`.
    """
    log_density: LogDensityFn | None = None
    """x -> log p(x) + const, `(chain,)`."""
    support: SupportFn | None = None
    """x -> bool, `(chain,)`; outside it p is 0. The paper's truncated density p*."""
    known_score: ScoreFn | None = None
    """Inside a kernel, for a product: the score of the parts that have a log density; `score` is then the others'."""
    levels: "ScoreModel | None" = None
    """The model with scores at all noise levels that this target belongs to, for `ThroughNoise`."""
    blurred: Callable[[float], Any] | None = None
    """For a product or a power: the function from a noise level to the same combination of the parts at this level."""

    def at(self, noise_level: float) -> Any:
        """Return the target blurred by Gaussian noise of this level.

        Args:
            noise_level: Standard deviation of the noise, in the coordinates of the models.
        """
        function = self.blurred if self.levels is None else self.levels.at
        if function is None:
            fix = "Use what fit_score returns, a diffusion model or a normal mixture, or a product of these."
            raise ValueError(checks.message("a target that knows noise levels", "one that does not", fix))
        return function(noise_level)

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
    """A `Target`, or any object with its first three attributes, such as all of `scoremh.targets`."""

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
    """A model with the scores of p * N(0, sigma^2 I) at all noise levels sigma, in coordinates u.

    Examples are a fit of `fit_score`, a diffusion model, and a normal mixture.
    """

    @property
    def noise_level(self) -> float | None:
        """The noise level of the model's `score`, in units of u; None if the model has no noise levels."""

    @property
    def noise_range(self) -> tuple[float, float] | None:
        """The lowest and the highest noise level of the model; None if the model has no noise levels."""

    @property
    def coordinates(self) -> Coordinates:
        """The map x = f(u) from coordinates in which noise of level sigma is sigma z, and p has mean 0."""

    @property
    def variance(self) -> float:
        """The variance of p in the coordinates u, averaged over them."""

    @property
    def event(self) -> Tensor | None:
        """An event of the shape, dtype and device of the data, with any values; None if they are unknown."""

    @property
    def probes(self) -> int | None:
        """Number of random directions along which `level_score` estimates the divergence; None if it is exact."""

    @property
    def standard(self) -> "ScoreModel":
        """The same model in the coordinates u."""

    def at(self, noise_level: float) -> TargetLike:
        """Return the distribution blurred by noise of this level, as a target."""

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score at noise level sigma, a number or one per chain, and its divergence."""


class Point(NamedTuple):
    """One position per chain, with the values that the next transition needs there; other values are None."""

    x: Float[Tensor, "chain *event"]
    score: Float[Tensor, "chain *event"] | None = None
    log_density: Float[Tensor, " chain"] | None = None
    """log p(x) up to a constant: of the target, of the known parts of a product, or in `grouped` the sum of the
    estimated changes over the accepted moves."""
    rest_score: Float[Tensor, "chain *event"] | None = None
    """For a product with known parts, the score of the other parts, which a rule integrates."""

    @classmethod
    def at(cls, x: Tensor, target: Target, needs: frozenset[Need]) -> "Point":
        """Return the point at x; only the needed functions are evaluated."""
        score = target.score(x) if target.score is not None and needs & {"score", "rest_score"} else None
        log_density = target.log_density(x) if target.log_density is not None and "log_density" in needs else None
        if score is None or target.known_score is None:
            return cls(x, score, log_density)
        total = score + target.known_score(x) if "score" in needs else None
        return cls(x, total, log_density, score if "rest_score" in needs else None)

    @property
    def integrated_score(self) -> Float[Tensor, "chain *event"]:
        """The score that a rule integrates; for a product with known parts, the score of the other parts."""
        score = self.score if self.rest_score is None else self.rest_score
        assert score is not None  # the kernel fills what `needs` names
        return score

    def where(self, accepted: Bool[Tensor, " chain"], otherwise: "Point") -> "Point":
        """Return this point for the chains that accept it, and the other one for the rest."""

        def choose(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(accepted.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        return self.map(choose, otherwise)

    def map(self, function: Callable[..., Tensor], *others: "Point") -> "Point":
        """Apply a function to each part of this point and the same part of the others; None stays None."""
        x, *rest = zip(self, *others, strict=True)
        return Point(function(*x), *(None if parts[0] is None else function(*parts) for parts in rest))


class Move(NamedTuple):
    """The record of one transition. The next transition does not need it."""

    proposed: Float[Tensor, "chain *event"]
    """The candidate, accepted or not."""
    log_accept: Float[Tensor, " chain"]
    """log a(x', x); -inf if p(x') is 0, NaN if a value was not finite. Both are rejections."""
    accepted: Bool[Tensor, " chain"]
    score_calls: int = 0
    """Number of points at which the score was evaluated, over all chains."""
    factors: int = 0
    """Number of random factors of the exact rule's Poisson product, over all chains; 0 for other rules."""
    clipped: int = 0
    """Number of factors that were clipped to their bound, which changes the ratio."""


class Trace(NamedTuple):
    """The record of several consecutive transitions; the first axis is the step."""

    x: Float[Tensor, "step chain *event"]
    """Positions after each step."""
    log_accept: Float[Tensor, "step chain"]
    accepted: Bool[Tensor, "step chain"]
    score_calls: int = 0
    factors: int = 0
    clipped: int = 0
    groups: int = 0
    """Groups of moves that a final rule decided on, over all chains."""
    rejected_groups: int = 0

    @classmethod
    def of(cls, points: list[Tensor], moves: list[Move]) -> "Trace":
        """Return the trace of these moves, given the positions after each of them."""
        calls, factors, clipped = (sum(counts) for counts in zip(*(move[3:] for move in moves), strict=True))
        log_accept = torch.stack([move.log_accept for move in moves])
        accepted = torch.stack([move.accepted for move in moves])
        return cls(torch.stack(points), log_accept, accepted, calls, factors, clipped)


class Proposal(ABC):
    """A proposal distribution q(x' | x). A subclass defines `sample`, `log_prob` and `needs`."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """The functions of p that are needed at the current point."""
    optimal_rates: ClassVar[Mapping[Balance, float]] = {}
    """The most efficient acceptance rate for each balance, for `tune`; empty if unknown."""

    def __init_subclass__(cls) -> None:
        """Give a subclass the generic `log_q_ratio` unless it defines one: another may not fit its `sample`."""
        super().__init_subclass__()
        if "log_q_ratio" not in vars(cls):
            cls.log_q_ratio = Proposal.log_q_ratio  # type: ignore[method-assign]

    @abstractmethod
    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""

    @abstractmethod
    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Return log q(to | given), differentiable in both."""

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return log q(current | proposed) - log q(proposed | current); a subclass may define a closed form."""
        return self.log_prob(current, given=proposed) - self.log_prob(proposed, given=current)


@runtime_checkable
class Step(Protocol):
    """One transition."""

    def __call__(self, point: Point, *, generator: torch.Generator | None = None) -> tuple[Point, Move]:
        """Return the next point, and the move that led to it."""


@runtime_checkable
class Run(Protocol):
    """Several transitions."""

    def __call__(self, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Return the last point, and the record of every step."""


class Kernel(NamedTuple):
    """A Markov kernel: `point = init(x)`, then `point, move = step(point, generator=g)`."""

    init: Callable[[Tensor], Point]
    step: Step
    run: Run | None = None
    """Several steps at once, if this is faster than calling `step`: the same Markov chain, but not the same bits."""
    target_rate: float | None = None
    """The acceptance rate at which this kernel is most efficient; `tune` aims at it."""
    steps_per_call: int = 1
    """`run` is called with multiples of this number of steps, except at the end of sampling: groups stay whole."""
    parts: tuple[object, ...] = ("a kernel",)
    """The proposal and the acceptance rule of the kernel."""
    unadjusted: Callable[[], "Kernel"] | None = None
    """Returns the kernel of the same moves without an accept step; None if the moves do not follow the score."""
    target: Target | None = None
    """The target as the parts use it, with a score only if one of them needs it; None if unknown."""

    def steps(self, point: Point, n: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
        """Make n transitions, by `run` if the kernel has it."""
        if self.run is not None:
            return self.run(point, n, generator=generator)
        positions, moves = [], []
        for _ in range(n):
            point, move = self.step(point, generator=generator)
            positions.append(point.x)
            moves.append(move)
        return point, Trace.of(positions, moves)

    @property
    def description(self) -> str:
        """The parts as text; a property, because it may hash the weights of a network."""
        return " with ".join(part if isinstance(part, str) else checks.named(part) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Box:
    """The support low <= x <= high, made by `box`: the paper's truncated p* (section 3.3)."""

    low: Tensor
    high: Tensor

    def __call__(self, x: Float[Tensor, "chain *event"]) -> Bool[Tensor, " chain"]:
        """Return whether every coordinate lies between the bounds."""
        for bound in (self.low, self.high):
            require_event(x, bound.shape or x.shape[1:])
        return ((self.low.to(x) <= x) & (x <= self.high.to(x))).flatten(1).all(1)


def box(low: Values, high: Values) -> Box:
    """Return the support of all x between two bounds.

    Args:
        low: Lower bound: a number for all coordinates, or a tensor or list of the event's shape.
        high: Upper bound, likewise.

    >>> box(0.0, [1.0, 2.0])(torch.tensor([[0.5, 1.5], [1.5, 0.5]]))
    tensor([ True, False])
    """
    # Numbers are kept in float64, so that the bound 0.1 is not rounded to float32 if x is in float64.
    bounds = [b.clone() if isinstance(b, Tensor) else torch.tensor(b, dtype=torch.float64) for b in (low, high)]
    if not (bounds[0] < bounds[1]).all():
        got = f"low={bounds[0].tolist()} and high={bounds[1].tolist()}"
        raise ValueError(checks.message("low below high in every coordinate", got, "Swap or correct the bounds."))
    return Box(*bounds)


def require_event(x: Tensor, event: tuple[int, ...]) -> None:
    """Raise an error unless the events of x have this shape; a different one would broadcast silently."""
    if x.shape[1:] != event:
        fix = "The first axis is the chain; the rest is one event."
        raise ValueError(checks.message(f"x of shape {written('chain', *event)}", checks.describe(x), fix))

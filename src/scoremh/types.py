"""The vocabulary: targets, points, moves and kernels.

A transition of Metropolis-Hastings from `x` proposes `x' ~ q(. | x)` and accepts it with probability `a(x', x)`.
The first axis of every tensor is the chain; the others are one event of any shape. Log quantities are `(chain,)`.

| name | what |
|---|---|
| `Target` | what is known of p: score, log density, support |
| `Point` | one position per chain, with what the next transition needs there |
| `Move`, `Trace` | what happened in one transition, and in several |
| `Kernel` | `point = init(x)`, then `point, move = step(point, generator=g)` |

Proposals and acceptance rules have base classes of their own, in `scoremh.proposals` and `scoremh.acceptance`.
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
# Where most of a heavy-tailed distribution lies, and how wide that is: numbers, or tuples over the flattened event.
Middle = tuple[float | tuple[float, ...], float | tuple[float, ...]]

# What a proposal or a rule needs of the target: at every point "score", "log_density" and, of a product with known
# parts, the "rest_score" of the other parts; "inner_score" between the points.
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
    """Of a product in a kernel, the score of the parts that have `log_density`; `score` is that of the others."""
    levels: "ScoreModel | None" = None
    """The scores at all noise levels, of which this target is one, for `ThroughNoise`."""
    blurred: Callable[[float], Any] | None = None
    """Of a product or a power, the function from a noise level to the same of the parts at that level."""

    def at(self, noise_level: float) -> Any:
        """Return the target at a noise level.

        Args:
            noise_level: Noise level, in the coordinates of the models that know it.
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
    """One position per chain, with what the next transition needs there; the rest is None."""

    x: Float[Tensor, "chain *event"]
    score: Float[Tensor, "chain *event"] | None = None
    log_density: Float[Tensor, " chain"] | None = None
    """log p(x) up to a constant: that of the target, that of its known parts, or in groups of moves what the accepted
    moves add up to."""
    rest_score: Float[Tensor, "chain *event"] | None = None
    """Of a product with known parts, the score of the others; a rule integrates it."""

    @classmethod
    def at(cls, x: Tensor, target: Target, needs: frozenset[Need]) -> "Point":
        """Evaluate what is needed at x, and nothing else."""
        score = target.score(x) if target.score is not None and needs & {"score", "rest_score"} else None
        log_density = target.log_density(x) if target.log_density is not None and "log_density" in needs else None
        if score is None or target.known_score is None:
            return cls(x, score, log_density)
        total = score + target.known_score(x) if "score" in needs else None
        return cls(x, total, log_density, score if "rest_score" in needs else None)

    @property
    def integrated_score(self) -> Float[Tensor, "chain *event"]:
        """The score that a rule integrates: of a product with known parts, that of the other parts."""
        score = self.score if self.rest_score is None else self.rest_score
        assert score is not None  # the kernel fills what `needs` names
        return score

    def map(self, function: Callable[..., Tensor], *others: "Point") -> "Point":
        """Apply a function to each part of this point and the same part of the others; None stays None."""
        x, *rest = zip(self, *others, strict=True)
        return Point(function(*x), *(None if parts[0] is None else function(*parts) for parts in rest))


class Move(NamedTuple):
    """What happened in one transition. The next one needs none of it."""

    proposed: Float[Tensor, "chain *event"]
    """The candidate, accepted or not."""
    log_accept: Float[Tensor, " chain"]
    """log a(x', x); -inf if p(x') is 0, NaN if a number was not finite. Both are rejections."""
    accepted: Bool[Tensor, " chain"]
    score_calls: int = 0
    """Number of points at which the score was evaluated, over all chains."""
    factors: int = 0
    """Number of random factors that the rule drew, over all chains."""
    clipped: int = 0
    """Number of factors that were clipped to their bound, which changes the ratio."""


class Trace(NamedTuple):
    """Several transitions in a row; the first axis is the step."""

    x: Float[Tensor, "step chain *event"]
    """Positions after each step."""
    log_accept: Float[Tensor, "step chain"]
    accepted: Bool[Tensor, "step chain"]
    score_calls: int = 0
    factors: int = 0
    clipped: int = 0

    @classmethod
    def of(cls, points: list[Tensor], moves: list[Move]) -> "Trace":
        """Return the trace of these moves, with the positions after each."""
        calls, factors, clipped = (sum(counts) for counts in zip(*(move[3:] for move in moves), strict=True))
        log_accept = torch.stack([move.log_accept for move in moves])
        accepted = torch.stack([move.accepted for move in moves])
        return cls(torch.stack(points), log_accept, accepted, calls, factors, clipped)


class Proposal(ABC):
    """A proposal distribution q(x' | x). A subclass defines `sample`, `log_prob` and what it `needs`."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What has to be known of p at the current point."""
    optimal_rates: ClassVar[Mapping[Balance, float]] = {}
    """The most efficient acceptance rate under each balance, for `tune`; empty if it is not known."""

    def __init_subclass__(cls) -> None:
        """Do not inherit a closed form of the ratio: a subclass may have another distribution."""
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
        """Return log q(current | proposed) - log q(proposed | current); a subclass may have a closed form."""
        return self.log_prob(current, given=proposed) - self.log_prob(proposed, given=current)


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
    """Several steps at once, if that is faster than calling `step`: the same Markov chain, but not the same bits."""
    target_rate: float | None = None
    """The acceptance rate at which this kernel is most efficient; `tune` aims at it."""
    least_steps: int = 1
    """`run` is called with multiples of this many steps, except at the end: the length of a group of moves."""
    parts: tuple[object, ...] = ("a kernel",)
    """What the kernel is made of: its proposal and its rule."""
    unadjusted: Callable[[], "Kernel"] | None = None
    """Builds the kernel of the same moves without an accept step; None if the moves do not follow the score."""
    target: Target | None = None
    """What the parts use of p; its score only if one of them needs it. None for a kernel that does not say."""

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
        """The parts as text, written on demand: it may hash the weights of a network."""
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
    """Raise an error if the events of x have another shape: it would broadcast silently."""
    if x.shape[1:] != event:
        fix = "The first axis is the chain; the rest is one event."
        raise ValueError(checks.message(f"x of shape {written('chain', *event)}", checks.describe(x), fix))

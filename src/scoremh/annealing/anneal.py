r"""Annealing: chains run at one noise level after another, from high to low.

At level sigma, the target is p * N(0, sigma^2 I), whose score s(x, sigma) comes from a model of all noise levels
(`fit_score`, a diffusion model). At a high level the modes of p merge, so chains reach all of them; as the noise
decreases, each chain follows the distribution down to p. This module holds

- schedules of levels: `geometric`, `karras` (Karras et al. 2022), and `flow_levels` for the probability flow;
- the probability flow `flow`, which moves draws deterministically from one level to the next (Song et al. 2021):

      dx / d sigma = -sigma C s(x, sigma)    for noise sigma z, z ~ N(0, C)

- `noise_ratio`, which tests whether chains have reached equilibrium at a level. Their apparent noise is x - D(x), with
  the denoiser D(x) = x + sigma^2 s(x). Stein's identity E[div s + |s|^2] = 0 says how large it must be: at equilibrium

      rho^2 = E|x - D|^2 / (sigma^2 E[tr(I - dD/dx)]) = E|s|^2 / E[-div s] = 1

- `anneal` itself, with `tune_steps` for the step size of each level, and `Corrector` for your own loops.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.algebra import runge_kutta
from scoremh._shared.counting import CountedScore, score_calls
from scoremh._shared.progress import progress_bar
from scoremh.acceptance import LineIntegral, Rule
from scoremh.coordinates import Affine
from scoremh.kernel import metropolis_hastings
from scoremh.proposals import MALA
from scoremh.sampling.pools import Pool, started
from scoremh.sampling.sample import sample
from scoremh.sampling.tuning import StepSearch, aimed_rate, transition
from scoremh.types import Kernel, Point, Proposal, ScoreModel, TargetLike

FLOW_LEVELS_PER_E_FOLD = 2


def geometric(high: float, low: float, n: int) -> list[float]:
    """Return n geometrically spaced levels, high (low / high)^(i / (n - 1)) for i = 0 to n - 1.

    Args:
        high: Highest noise level.
        low: Lowest noise level.
        n: Number of levels.

    >>> geometric(8.0, 1.0, 4)
    [8.0, 4.0, 2.0, 1.0]
    """
    _check_range(high, low, n)
    return [_rounded(high * (low / high) ** share) for share in _shares(n)]


def karras(high: float, low: float, n: int, rho: float = 7.0) -> list[float]:
    """Return n levels from high to low whose rho-th roots are equally spaced (Karras et al. 2022).

    Args:
        high: Highest noise level.
        low: Lowest noise level.
        n: Number of levels.
        rho: Exponent; larger values put more levels at low noise.
    """
    _check_range(high, low, n)
    checks.positive(rho, "rho")
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [_rounded((a + share * (b - a)) ** rho) for share in _shares(n)]


def flow_levels(high: float, low: float) -> list[float]:
    """Return levels from high to low for `flow`, each at most e^(1/2) times the next: 11 levels from 2 to 0.02.

    On normal distributions of any width, mixtures and curved distributions, from levels of 5 and less to 0.02, the
    error was at most 0.5 % in each variance and 0.005 in the weight of each mode.

    Args:
        high: Highest noise level.
        low: Lowest noise level.
    """
    _check_range(high, low, 1)
    return geometric(high, low, 1 + math.ceil(FLOW_LEVELS_PER_E_FOLD * math.log(high / low)))


def _rounded(level: float) -> float:
    """Round to 12 digits, so that 3.9999999999999996 becomes 4.0."""
    return float(f"{level:.12g}")


def _shares(n: int) -> list[float]:
    return [i / (n - 1) if n > 1 else 1.0 for i in range(n)]


def _check_range(high: float, low: float, n: int) -> None:
    checks.positive(high, "high")
    checks.positive(low, "low")
    checks.count(n, "n")
    if low > high:
        got = f"high={high} and low={low}"
        raise ValueError(checks.message("low of at most high", got, "Swap them: levels go from high to low."))


def check_levels(levels: Sequence[float]) -> None:
    """Raise an error unless the noise levels decrease (or stay equal) and are above 0."""
    fix = "Pass a list of numbers, such as annealing.geometric(high, low, n)."
    if not isinstance(levels, Iterable) or not all(isinstance(level, int | float) for level in levels):
        raise TypeError(checks.message("levels to be a list of numbers", checks.describe(levels), fix))
    levels = list(levels)
    falling = all(later <= earlier for earlier, later in itertools.pairwise(levels))
    if not levels or not falling or not levels[-1] > 0:
        raise ValueError(checks.message("positive levels from high to low", levels, fix))


def flow(
    target_at: Callable[[float], TargetLike],
    levels: Sequence[float],
    x: Float[Tensor, "chain *event"],
    *,
    covariance: Tensor | None = None,
) -> Float[Tensor, "chain *event"]:
    """Move draws from the first noise level to the last along the probability flow, and return them.

    Chains can run at a level where a learned score has the right weights of the modes, and the flow then moves their
    draws to the data. It is integrated by Kutta's 3/8 rule in sigma, of order four with four scores per step. With
    `flow_levels`, its error is at most 0.5 % in each variance and 0.005 in the weight of each mode. (In the variance
    sigma^2 instead of sigma, Heun's method on eight levels lost a tenth of the variance of real tables.) If the last
    level is 0, a final step removes the noise of the level before it.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it, such as
            `fit.at`.
        levels: Noise levels from high to low, such as `flow_levels(2.0, 0.02)`; the last may be 0.
        x: Draws of the distribution blurred by the first level.
        covariance: C of the noise sigma^2 C, such as `fit.covariance`; the identity if None.

    Returns:
        The same number of draws, at the last level.

    Example:
        >>> import torch
        >>> from scoremh import Target, annealing
        >>> def target_at(level):  # N(0, 1) blurred by noise of this level
        ...     return Target(score=lambda x: -x / (1 + level**2))
        >>> x = torch.full((1, 1), 2.0)  # one standard deviation, with noise of variance 3
        >>> end = flow(target_at, [*annealing.flow_levels(3**0.5, 0.02), 0.0], x)
        >>> round(float(end), 2)
        1.0
    """
    checks.events(x, "x")
    to_data = bool(levels) and levels[-1] == 0
    noisy = levels[:-1] if to_data else levels
    check_levels(noisy)
    coordinates = None if covariance is None else Affine.from_covariance(covariance)

    def drift(x: Tensor, level: float) -> Tensor:
        score = target_at(level).score
        if score is None:
            fix = "Return a target with the score of the distribution blurred by this level."
            raise ValueError(checks.message("target_at to return a target with a score", "one without", fix))
        s = CountedScore(score)(x)
        return -level * (s if coordinates is None else coordinates.precondition(s))

    with torch.inference_mode(), checks.explained():
        x = runge_kutta(drift, x, noisy)
        if to_data:  # one step in sigma^2 keeps the variance of a normal distribution; E[data | x] would be too narrow
            x = x - noisy[-1] / 2 * drift(x, noisy[-1])
    return x.clone()  # an ordinary tensor again


# The noise ratio. rho is 1 at equilibrium for every distribution, not only if noise dominates. If the target is
# N(0, sigma^2 I) and the chains are rho times too wide, the ratio is this rho. Narrow directions count most, as in
# |s|^2. The divergence is estimated along one vector of random signs per chain, by a difference of scores: two score
# calls for each of a few chains, and no derivative.
#
# Chains are too early at a level if a t-test rejects rho <= RHO_LIMIT, that is E[|s|^2 + RHO_LIMIT^2 div s] <= 0. Both
# terms are skewed to the right, which makes the test conservative: at equilibrium it rejects with a probability of at
# most FALSE_ALARM_RATE.
REVERSE_RATIO = 1.15  # of neighbouring levels of the reverse diffusion


def reverse_diffusion(
    target_at: Callable[[float], TargetLike],
    high: float,
    low: float,
    x: Float[Tensor, "chain *event"],
    *,
    ratio: float = REVERSE_RATIO,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "chain *event"]:
    """Carry draws from one noise level to a lower one by the reverse diffusion, with fresh noise, and return them.

    Heun's method for dx = s dt + dw, t = -sigma^2, of weak order two: from a level a to the next level b, with
    t = a^2 - b^2, y = x + t s(x, a) + sqrt(t) z and x' = x + t (s(x, a) + s(y, b)) / 2 + sqrt(t) z.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it.
        high: Noise level of the draws.
        low: Noise level to go to, above 0.
        x: Draws of the distribution blurred by the first level, in coordinates in which the noise is sigma z.
        ratio: Largest ratio of two neighbouring levels.
        generator: Random number generator; the same seed gives the same draws.
    """

    def score(x: Tensor, level: float) -> Tensor:
        target = target_at(level).score
        assert target is not None
        return CountedScore(target)(x)

    levels = geometric(high, low, 1 + math.ceil(math.log(high / low) / math.log(ratio)))
    with torch.inference_mode(), checks.explained():
        for a, b in itertools.pairwise(levels):
            t = a**2 - b**2
            s, noise = score(x, a), math.sqrt(t) * rng.normal(tuple(x.shape), x, generator)
            x = x + t / 2 * (s + score(x + t * s + noise, b)) + noise
    return x.clone()


@dataclass(frozen=True, eq=False)
class NoiseDenoise(Proposal):
    """Noise to a level and denoise back, x' ~ p(. | x + sigma z): a move that is reversible for a prior p.

    The density of the prior need not be known: its ratio cancels against that of the proposal, and the likelihood alone
    decides. So the target of the kernel is the likelihood, and the chain is one of the posterior:
    `metropolis_hastings(targets.linear_observation(A, y, std), NoiseDenoise(model, 1.0), Exact())`.

    x has the noise of the lowest level. The reverse diffusion is approximate: on a mixture of two normal distributions
    two moves to level 8 and back to .02 left variances 2 to 4 % too small, with a ratio of 1.08 1 to 2 %.

    Args:
        model: Prior at all noise levels.
        noise_level: Level of the noise; the higher, the longer the moves.
        ratio: Largest ratio of two neighbouring levels on the way back.
        low: Noise level of x; that at which the model is read if None.
    """

    model: ScoreModel
    noise_level: float
    ratio: float = REVERSE_RATIO
    low: float | None = None

    def sample(self, at: Point, *, generator: torch.Generator | None = None) -> Float[Tensor, "chain *event"]:
        """Draw one candidate per chain."""
        low = self.model.noise_level if self.low is None else self.low
        assert low is not None
        u = self.model.coordinates.inverse(at.x)
        noise = math.sqrt(self.noise_level**2 - low**2) * rng.normal(tuple(u.shape), u, generator)
        back = reverse_diffusion(
            self.model.standard.at, self.noise_level, low, u + noise, ratio=self.ratio, generator=generator
        )
        x: Tensor = self.model.coordinates(back)
        return x

    def log_prob(self, to: Point, *, given: Point) -> Float[Tensor, " chain"]:
        """Raise an error: only the ratio is known, relative to the prior."""
        raise NotImplementedError("NoiseDenoise knows its ratio relative to the prior only")

    def log_q_ratio(self, current: Point, proposed: Point) -> Float[Tensor, " chain"]:
        """Return 0: relative to the prior, for which the move is reversible."""
        return current.x.new_zeros(len(current.x))


RHO_LIMIT = 1.05  # a variance a tenth too large, in the narrow directions
FALSE_ALARM_RATE = 0.01  # of one test, and of all tests of a run together
MEASURED_NUMBERS = 40_000  # coordinates over all measured chains: a standard error of rho of about sqrt(1/2 / 40,000)
LEAST_CHAINS = 16  # number of chains for a t-test, if there are so many
WATCHED_SHARE = 0.03  # score calls for the measurement, as a fraction of the transitions of a run (of its calls, less)
RELATIVE_STEP = 0.01  # step of the difference of scores, in units of the noise
COARSEST_ROUNDING = 1e-3  # relative rounding above which a difference of scores is useless, as in bfloat16
# The signs have their own generator, so that measuring does not change the draws of the chains; and their own seed,
# because with the seed of the initial points they would be the signs of those points.
SIGNS_SEED = 2_718_281_828


class EarlyAnnealingWarning(UserWarning):
    """Warns that chains left noise levels before equilibrium: they are wider than the distribution."""


class NoiseRatio(NamedTuple):
    """Ratio of the actual to the expected noise of chains at a noise level.

    Args:
        rho: Square root of E|s|^2 / E[-div s]; 1 at equilibrium.
        standard_error: Standard error of rho.
        score_calls: Number of points at which the score was evaluated.
        p_value: Probability of a ratio at least this large if rho were `RHO_LIMIT`; NaN if nothing could be measured.
    """

    rho: float
    standard_error: float
    score_calls: int
    p_value: float

    @property
    def early(self) -> bool:
        """Whether rho is significantly above `RHO_LIMIT`: the chains have more noise than the level."""
        return self.p_value < FALSE_ALARM_RATE


def noise_ratio(kernel: Kernel, x: Tensor, level: float, *, chains: int | None = None) -> NoiseRatio:
    """Return the ratio of the actual to the expected noise of chains at a noise level, measured on the first chains.

    Args:
        kernel: Kernel of the level, with a score.
        x: Points of the chains.
        level: Noise level sigma.
        chains: Number of chains to measure; by default, enough for a standard error of rho of half a per cent.
    """
    measured = x[: enough_chains(x) if chains is None else chains]
    signs = rng.normal(tuple(measured.shape), measured, rng.seeded(SIGNS_SEED, x.device)).sign()
    step = RELATIVE_STEP * level
    both = torch.cat([measured, measured + step * signs])
    # Never evaluate more rows at once than there are chains: memory may not suffice for more.
    with score_calls() as calls:
        scores = [_score(kernel, rows) for rows in both.split(len(x))]
    if any(score is None for score in scores):
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    here, there = torch.cat(scores).chunk(2)  # type: ignore[arg-type]
    square = here.flatten(1).square().sum(1).double()
    divergence = ((there - here) * signs).flatten(1).sum(1).double() / step
    return _ratio_of_means(square, -divergence)._replace(score_calls=calls.total)


@torch.inference_mode()
def _score(kernel: Kernel, x: Tensor) -> Tensor | None:
    """Return the score of a kernel's target at x, without its other values; None if the kernel has no score."""
    point = kernel.init(x) if kernel.target is None else Point.at(x, kernel.target, frozenset({"score"}))
    return point.score


def _ratio_of_means(square: Float[Tensor, " chain"], curvature: Float[Tensor, " chain"]) -> NoiseRatio:
    """Return the noise ratio from |s|^2 and -div s of each chain; leave out chains with a value that is not finite."""
    from scipy import special  # here, so that `import scoremh` stays light

    finite = (square + curvature).isfinite()
    square, curvature = square[finite], curvature[finite]
    if len(square) < 2:  # no standard error
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    excess, ratio = square - RHO_LIMIT**2 * curvature, float(square.mean() / curvature.mean())
    p_value = float(special.stdtr(len(excess) - 1, -float(excess.mean() / _standard_error(excess))))
    if not ratio > 0:  # log p is convex on average, so rho is not defined
        return NoiseRatio(math.inf, math.inf, 0, p_value)
    error = float(_standard_error(square - ratio * curvature) / curvature.mean())
    return NoiseRatio(math.sqrt(ratio), error / (2 * math.sqrt(ratio)), 0, p_value)


def _standard_error(values: Float[Tensor, " chain"]) -> Float[Tensor, ""]:
    """Return the standard error of a mean."""
    return values.std() / math.sqrt(len(values))


def enough_chains(x: Float[Tensor, "chain *event"]) -> int:
    """Return the number of chains that gives rho with a standard error of half a per cent."""
    return min(len(x), max(LEAST_CHAINS, math.ceil(MEASURED_NUMBERS / x[0].numel())))


def affordable_chains(x: Float[Tensor, "chain *event"], steps: Sequence[int]) -> list[int]:
    """Return the number of chains to measure at the end of each stage, for a small share of the score calls of a run.

    `steps` are the transitions of each stage. If the share does not suffice for all stages, only some are measured, the
    last one among them.
    """
    budget = int(WATCHED_SHARE * len(x) * sum(steps)) // 2 if len(x) > 1 else 0  # two score calls per chain
    enough = enough_chains(x)
    least, each = min(LEAST_CHAINS, enough), budget // len(steps)
    if each >= least:
        return [min(each, enough)] * len(steps)
    count = budget // least
    ends = {round(len(steps) * (i + 1) / count) - 1 for i in range(count)}
    return [least * (number in ends) for number in range(len(steps))]


def is_measurable(kernel: Kernel, x: Tensor) -> bool:
    """Return whether rho of a kernel's chains is meaningful and needs score calls only.

    It is not if the kernel uses no score or has no `target`; for a truncated distribution, because Stein's identity
    fails at its edge; and in a dtype whose rounding is as large as a difference of scores.
    """
    target = kernel.target
    known = target is not None and target.score is not None and target.support is None
    return known and torch.finfo(x.dtype).eps <= COARSEST_ROUNDING


MAX_ROUNDS = 4  # largest number of times that the steps of a level are repeated


@dataclass(frozen=True, eq=False)
class Annealed:
    """The result of `anneal`.

    Args:
        draws: Last points of the chains.
        levels: Noise levels, one per stage; with final steps, the last level occurs twice.
        steps: Number of transitions per stage.
        acceptance_rates: Fraction of accepted candidates per stage.
        score_calls: Number of points at which the score was evaluated, over all chains and levels.
        accept_above: Noise level below which every candidate was accepted; 0 if every level had an accept step.
        rho: Ratio of the actual to the expected noise of the chains at the end of each stage, 1 at equilibrium (see
            `noise_ratio`). NaN for stages that were not measured; None if no stage was.
    """

    draws: Float[Tensor, "chain *event"]
    levels: tuple[float, ...]
    steps: tuple[int, ...]
    acceptance_rates: tuple[float, ...]
    score_calls: int
    accept_above: float = 0.0
    rho: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        """Show the levels, the acceptance rates and the cost."""
        levels, rates = self.levels, self.acceptance_rates
        gate = f"; no accept step below noise {self.accept_above:.3g}" if levels[-1] < self.accept_above else ""
        noise = (
            ""
            if self.rho is None or math.isnan(self.rho[-1])
            else f"; actual over expected noise at last {self.rho[-1]:.3f}"
        )
        return (
            f"Annealed({len(self.draws)} chains, {len(levels)} stages from noise {levels[0]:.3g} to {levels[-1]:.3g}; "
            f"acceptance {rates[0]:.3f} at first, {rates[-1]:.3f} at last, {min(rates):.3f} at least{gate}{noise}; "
            f"{self.score_calls:,} score calls)"
        )


def anneal(
    kernel_at: Callable[[float], Kernel],
    levels: Sequence[float],
    initial: Tensor,
    *,
    steps_per_level: int = 20,
    final_steps: int = 0,
    accept_above: float = 0.0,
    measure_noise: bool | None = None,
    adaptive: bool = False,
    predict: bool = False,
    denoise: bool = False,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Annealed:
    """Run chains from high noise to low: some steps at each level, starting where the previous level ended.

    Args:
        kernel_at: Function from a noise level to the kernel for it. A step size proportional to the squared level is
            good at all levels.
        levels: Noise levels from high to low, such as `geometric(5.0, 0.05, 20)`.
        initial: Initial points, one per chain, `(chain, *event)`: noise of the highest level around the data's mean.
        steps_per_level: Number of transitions at each level.
        final_steps: Number of further transitions at the last level.
        accept_above: Noise level below which every candidate is accepted. An accept step has little meaning at levels
            where the integral of a learned score depends on the path (`diagnostics.lowest_conservative_level`). 0 for
            an accept step at every level.
        measure_noise: Measure the ratio of the actual to the expected noise of the chains at the ends of levels (`rho`
            of the result), and warn if it is above 1.05. At equilibrium, at most 1 % of runs give a false warning. True
            measures every level, with two score calls for each of up to 40,000 / d chains, for a standard error of half
            a per cent. False measures none. By default, as many chains and levels are measured as 3 % more score calls
            allow; none if the kernels use no score or have no `target`, if p has a support, or in half precision. The
            draws do not depend on it.
        adaptive: Measure as with `measure_noise=True`, and repeat the steps of a level above the limit, up to four
            times.
        predict: Move from one level to the next by a step of the probability flow, which costs one more score call per
            level; the transitions then only correct. This helps along wide directions, for which steps of the size of
            the noise are too short. The noise must be sigma z in the coordinates of the kernels.
        denoise: Return x + sigma^2 s(x) at the last level sigma, the expected data given x. These draws are less spread
            out than the data. The noise must be sigma z in the coordinates of the kernels.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to. The same call with the same folder resumes an interrupted run.
        pool: Workers that run blocks of chains, as for `sample`.

    Returns:
        The last points of the chains, and acceptance rates and costs of the levels.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, annealing, metropolis_hastings
        >>> def kernel_at(level):  # N(0, 1) blurred by noise of this level
        ...     target = Target(score=lambda x: -x / (1 + level**2))
        ...     return metropolis_hastings(target, MALA(0.5 * level**2), LineIntegral())
        >>> found = anneal(kernel_at, annealing.geometric(4.0, 0.5, 4), 4 * torch.randn(10, 2), steps_per_level=5)
        >>> found.draws.shape
        torch.Size([10, 2])
    """
    checks.events(initial, "initial")
    checks.count(steps_per_level, "steps_per_level")
    checks.count(final_steps, "final_steps", at_least=0)
    check_levels(levels)
    if not accept_above >= 0:
        raise ValueError(
            checks.message(
                "accept_above of at least 0", accept_above, "Leave it out for an accept step at every level."
            )
        )
    stages = [(level, steps_per_level) for level in levels] + [(levels[-1], final_steps)] * (final_steps > 0)
    measured = _measured_chains(initial, [steps for _, steps in stages], True if adaptive else measure_noise)
    how: dict[str, Any] = {
        "required": bool(measure_noise or adaptive),
        "rounds": MAX_ROUNDS * adaptive,
        "predict": predict,
    }
    bar = progress_bar(sum(steps for _, steps in stages), "annealing", unit="steps", show=progress)
    with started(pool) as workers, bar as tick:
        descent = _Descent(initial, accept_above, {"generator": generator, "pool": workers}, store)
        for number, (level, steps) in enumerate(stages):
            descent.walk(kernel_at, number, level, steps, measured=measured[number], **how)
            tick(steps, f"noise {level:.3g}, accepted {descent.rates[-1]:.3f}")
    _warn_if_early([level for level, _ in stages], descent.ratios)
    return descent.finished(kernel_at, stages, denoise=denoise)


def _measured_chains(initial: Tensor, steps: Sequence[int], measure_noise: bool | None) -> list[int]:
    """Return the number of chains to measure at the end of each stage."""
    if measure_noise is None:
        return affordable_chains(initial, steps)
    return [enough_chains(initial) if measure_noise else 0] * len(steps)


@dataclass
class _Descent:
    """State of `anneal`: the points of the chains, and the record of the stages so far."""

    x: Tensor
    accept_above: float
    options: dict[str, Any]
    store: str | Path | None
    steps: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    ratios: list[NoiseRatio | None] = field(default_factory=list)
    score_calls: int = 0
    before: tuple[Kernel, float] | None = None

    def walk(
        self,
        kernel_at: Callable[[float], Kernel],
        number: int,
        level: float,
        steps: int,
        *,
        measured: int,
        required: bool,
        rounds: int,
        predict: bool,
    ) -> None:
        """Make the steps of a stage, and repeat them up to `rounds` times while the chains have too much noise."""
        kernel = kernel_at(level) if level >= self.accept_above else _unadjusted(kernel_at(level))
        if predict and self.before is not None:
            kernel_before, level_before = self.before
            self.x = self.moved(kernel_before, level_before * (level_before - level))  # in sigma, as `flow`
        self.before, accepted = (kernel, level), []
        for again in range(rounds + 1):
            chains = sample(kernel, self.x, draws=1, thin=steps, store=self.folder(number, again), **self.options)
            self.x = chains.draws[:, 0]
            accepted.append(chains.acceptance_rate)
            self.score_calls += chains.score_calls
            ratio = self.noise_ratio(kernel, level, measured, required=required) if measured else None
            if ratio is None or not ratio.early:
                break
        self.steps.append(steps * len(accepted))
        self.rates.append(sum(accepted) / len(accepted))
        self.ratios.append(ratio)

    def noise_ratio(self, kernel: Kernel, level: float, chains: int, *, required: bool) -> NoiseRatio | None:
        """Return the noise ratio of the first chains, and count its score calls.

        If it is not required, return None when it has no meaning, or when the score fails for so few chains.
        """
        ratio = None
        if required:
            ratio = noise_ratio(kernel, self.x, level, chains=chains)
            if not ratio.score_calls:
                raise _no_score(kernel, "measure_noise and adaptive")
        elif is_measurable(kernel, self.x):
            with suppress(Exception):  # for example from a score with one condition per chain
                ratio = noise_ratio(kernel, self.x, level, chains=chains)
        self.score_calls += 0 if ratio is None else ratio.score_calls
        return ratio

    def folder(self, number: int, again: int) -> Path | None:
        """Return the folder for a round of a stage; None if nothing is stored."""
        name = f"stage-{number:04}" + f"-{again}" * (again > 0)
        return None if self.store is None else Path(self.store) / name

    def moved(self, kernel: Kernel, distance: float) -> Tensor:
        """Return the points moved along the score of a kernel, and count its calls."""
        with score_calls() as calls:
            score = kernel.init(self.x).score
        if score is None:
            raise _no_score(kernel, "predict and denoise")
        self.score_calls += calls.total
        return torch.add(self.x, score, alpha=distance).clone()

    def finished(
        self, kernel_at: Callable[[float], Kernel], stages: list[tuple[float, int]], *, denoise: bool
    ) -> Annealed:
        """Return the result, with the noise of the last level removed from the draws if `denoise`."""
        x = self.moved(kernel_at(stages[-1][0]), stages[-1][0] ** 2) if denoise else self.x
        levels = tuple(level for level, _ in stages)
        rho = tuple(math.nan if ratio is None else ratio.rho for ratio in self.ratios) if any(self.ratios) else None
        return Annealed(x, levels, tuple(self.steps), tuple(self.rates), self.score_calls, self.accept_above, rho)


def _warn_if_early(levels: Sequence[float], ratios: Sequence[NoiseRatio | None]) -> None:
    """Warn of noise levels that the chains left with too much noise; `levels` and `ratios` have one entry per stage."""
    at_end = dict(zip(levels, ratios, strict=True))  # for a level with two stages, the second
    measured = {level: ratio for level, ratio in at_end.items() if ratio is not None}
    early = {level: ratio.rho for level, ratio in measured.items() if ratio.p_value < FALSE_ALARM_RATE / len(measured)}
    if early:
        worst, last = max(early, key=early.__getitem__), min(measured)
        places = dict.fromkeys((worst, last))  # only one if they are the same
        amounts = " and ".join(f"{measured[level].rho:.3g} times at level {level:.3g}" for level in places)
        text = (
            f"Chains left {len(early)} of {len(measured)} noise levels with more than {RHO_LIMIT} times their noise: "
            f"{amounts}, the last level measured. The chains are too wide there. Increase steps_per_level or "
            "final_steps, pass adaptive=True or predict=True, or tune the step size of each level "
            "(annealing.tune_steps); without an accept step, use smaller steps."
        )
        checks.warn(text, EarlyAnnealingWarning)


def _no_score(kernel: Kernel, options: str) -> ValueError:
    """Return the error for a kernel without a score."""
    fix = f"Use MALA, or leave {options} out."
    return ValueError(checks.message("kernels with a score", kernel.description, fix))


def _unadjusted(kernel: Kernel) -> Kernel:
    """Return the kernel without its accept step; raise an error if its moves do not follow the score."""
    if kernel.unadjusted is None:
        fix = "Use MALA or hamiltonian, or leave accept_above out."
        got = f"{kernel.description}, which is not valid without an accept step"
        raise ValueError(checks.message("kernels whose moves follow the score below accept_above", got, fix))
    return kernel.unadjusted()


def tune_steps(
    make_kernel: Callable[[float, float], Kernel],
    levels: Sequence[float],
    initial: Tensor,
    *,
    start: float = 0.3,
    target_rate: float | None = None,
    steps_per_level: int = 40,
    generator: torch.Generator | None = None,
) -> dict[float, float]:
    """Return a step size for each noise level, at which its kernel has its target acceptance rate.

    Pilot chains go through the levels while the step size is tuned. Each level starts from the step size of the
    previous one.

    Args:
        make_kernel: Function from a noise level and a step size to a kernel, such as
            `lambda level, step: metropolis_hastings(model.at(level), MALA(step * level**2), LineIntegral())`.
        levels: Noise levels from high to low, the same as for `anneal`.
        initial: Initial points of the pilot chains: noise of the highest level; 50 chains are enough.
        start: First step size to try at the highest level.
        target_rate: Acceptance rate to reach; by default the kernel's own.
        steps_per_level: Number of transitions of the pilot chains at each level.
        generator: Random number generator; the same seed gives the same step sizes.

    Example:
        >>> from scoremh import MALA, LineIntegral, anneal, annealing, metropolis_hastings, targets
        >>> normal, g = targets.Gaussian([0.0, 0.0]), torch.Generator().manual_seed(0)
        >>> def make_kernel(level, step):
        ...     return metropolis_hastings(normal.at(level), MALA(step * level**2), LineIntegral())
        >>> levels, noise = annealing.geometric(5.0, 0.5, 4), 5 * torch.randn(50, 2, generator=g)
        >>> steps = tune_steps(make_kernel, levels, noise, generator=g)
        >>> found = anneal(lambda level: make_kernel(level, steps[level]), levels, noise, generator=g)
    """
    check_levels(levels)
    checks.events(initial, "initial")
    checks.count(steps_per_level, "steps_per_level")
    checks.positive(start, "start")
    generator = rng.resolve(generator, initial.device)
    found, x, step = {}, initial, start
    for level in levels:
        kernel = make_kernel(level, step)
        search, point = StepSearch(step, aimed_rate(kernel, target_rate)), kernel.init(x)
        for _ in range(steps_per_level):
            point, accept = transition(make_kernel(level, search.step), point, generator)
            search.update(accept)
        x, step = point.x.clone(), search.average
        found[level] = step
    return found


@dataclass(frozen=True)
class Corrector:
    """Metropolis-Hastings steps at a noise level, as the corrector of your own predictor-corrector loop.

    `x = corrector(x, sigma)` makes `steps` transitions at the level sigma that the predictor has reached; x is in the
    coordinates x0 + sigma z. The steps leave the distribution at this level unchanged.

    Args:
        model: Model with scores at all noise levels, from `scoremh.diffusion` or `fit_score`.
        proposal_at: Function from a noise level to the proposal for it, or a number c for `MALA(c * sigma**2)`.
        rule: Acceptance rule; `Always()` for unadjusted Langevin steps.
        steps: Number of transitions in one call.

    Example:
        >>> from scoremh import annealing, targets
        >>> normal, g = targets.Gaussian([0.0, 0.0]), torch.Generator().manual_seed(0)
        >>> corrector = Corrector(normal, lambda sigma: MALA(0.3 * sigma**2), steps=2)
        >>> x = 5 * torch.randn(100, 2, generator=g)
        >>> for high, low in [(5.0, 2.0), (2.0, 1.0)]:
        ...     x = annealing.flow(normal.at, [high, low], x)  # a predictor
        ...     x = corrector(x, low, generator=g)
        >>> x.shape
        torch.Size([100, 2])
    """

    model: ScoreModel
    proposal_at: Callable[[float], Proposal] | float = 0.3
    rule: Rule = field(default_factory=LineIntegral)
    steps: int = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        checks.kind(self.model, ScoreModel, "a model of all noise levels", "Use an adapter of scoremh.diffusion.")
        checks.kind(self.rule, Rule, "an acceptance rule", "Pass LineIntegral(), for example.")
        checks.count(self.steps, "steps")
        if not callable(self.proposal_at):
            checks.positive(self.proposal_at, "proposal_at", ", or a function from a noise level to a proposal")

    def kernel_at(self, noise_level: float) -> Kernel:
        """Return the kernel of a noise level, which also serves `anneal`.

        Args:
            noise_level: sigma.
        """
        if callable(self.proposal_at):
            proposal = self.proposal_at(noise_level)
        else:
            proposal = MALA(self.proposal_at * noise_level**2)
        return metropolis_hastings(self.model.at(noise_level), proposal, self.rule)

    def __call__(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "chain *event"]:
        """Return the points after the steps.

        Args:
            x: Points at this noise level, one per chain.
            sigma: Noise level, one for all chains.
            generator: Random number generator; the same seed gives the same points.
        """
        chains = sample(self.kernel_at(float(sigma)), x, draws=1, thin=self.steps, generator=generator)
        return chains.draws[:, 0]

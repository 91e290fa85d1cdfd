r"""Schedules of noise levels, from high to low.

| schedule | level i of 0 to n - 1 |
|---|---|
| `geometric` | high (low / high)^(i / (n - 1)) |
| `karras` | (high^(1/rho) + i / (n - 1) (low^(1/rho) - high^(1/rho)))^rho (Karras et al. 2022) |
| `flow_levels` | geometric, as many as the probability flow needs |

The probability flow: draws carried from one noise level to another, with nothing random.

    dx / d sigma = -sigma C s(x, sigma)

carries the distribution blurred by noise sigma z, z ~ N(0, C), from one sigma to the next (Song et al. 2021; in sigma,
Karras et al. 2022). Chains can therefore run at a level where a learned score has the right weights of modes, and their
draws be carried down to the data. The variable matters: with the variance sigma^2 in place of sigma, Heun's method on
eight levels left a tenth of the variance of real tables behind.

Have chains arrived at a noise level? The noise that they carry, over the noise that they should.

With D(x) = x + sigma^2 s(x), the denoiser of a level, the residual x - D(x) is the noise that a chain seems to carry.
At equilibrium Stein's identity E[div s + |s|^2] = 0 says how large it has to be:

    rho^2 = E|x - D|^2 / (sigma^2 E[tr(I - dD/dx)]) = E|s|^2 / E[-div s]

which is 1 for every distribution, not only for one that noise dominates, and rho where chains of N(0, sigma^2 I) are
rho times too wide. Narrow directions count most, as they do in |s|^2. The divergence is taken along one vector of
random signs per chain, by a difference of scores: two score calls for each of a few chains, and no derivative.

Chains are early where a t-test over them rejects rho <= `RHO_LIMIT`, E[|s|^2 + RHO_LIMIT^2 div s] <= 0. Both terms
have their long tail upwards, which makes the test conservative: chains that have arrived are early with a probability
of at most `FALSE_ALARM_RATE`.

Chains annealed from high noise to low.

At a high level the modes of a distribution merge and chains reach all of them; on the way down, every chain is led to
where the distribution is. A score that takes a noise level (`fit_score`, a diffusion model) serves all of them.

A step size for every noise level, found on a pilot batch of chains before the others are annealed.

Metropolis-Hastings steps inside a sampler of one's own: the corrector of a predictor-corrector loop.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
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
    """Return n levels from high to low, each the same share of the one before.

    >>> geometric(8.0, 1.0, 4)
    [8.0, 4.0, 2.0, 1.0]
    """
    _check_range(high, low, n)
    return [_rounded(high * (low / high) ** share) for share in _shares(n)]


def karras(high: float, low: float, n: int, rho: float = 7.0) -> list[float]:
    """Return n levels from high to low whose rho-th roots are equally spaced."""
    _check_range(high, low, n)
    checks.positive(rho, "rho")
    a, b = high ** (1 / rho), low ** (1 / rho)
    return [_rounded((a + share * (b - a)) ** rho) for share in _shares(n)]


def flow_levels(high: float, low: float) -> list[float]:
    """Return levels from high to low for `flow`, each at most e^(1/2) times the next: 11 from 2 to 0.02.

    On normal distributions of any width, mixtures and curved distributions, no variance was off by more than .5 % and
    no weight of a mode by more than .005, from levels of 5 and less to 0.02.
    """
    _check_range(high, low, 1)
    return geometric(high, low, 1 + math.ceil(FLOW_LEVELS_PER_E_FOLD * math.log(high / low)))


def _rounded(level: float) -> float:
    """Return the level with the digits that a person would write: 4.0, not 3.9999999999999996."""
    return float(f"{level:.12g}")


def _shares(n: int) -> list[float]:
    return [i / (n - 1) if n > 1 else 1.0 for i in range(n)]


def _check_range(high: float, low: float, n: int) -> None:
    checks.positive(high, "high")
    checks.positive(low, "low")
    checks.count(n, "n")
    if low > high:
        got = f"high={high} and low={low}"
        raise ValueError(checks.message("low of at most high", got, "Swap them: noise goes down."))


def check_levels(levels: Sequence[float]) -> None:
    """Refuse noise levels that do not fall, or that end at 0."""
    levels = list(levels)
    falling = all(later <= earlier for earlier, later in itertools.pairwise(levels))
    if not levels or not falling or not levels[-1] > 0:
        fix = "Use annealing.geometric(high, low, n), for example."
        raise ValueError(checks.message("levels from high to low", list(levels), fix))


def flow(
    target_at: Callable[[float], TargetLike],
    levels: Sequence[float],
    x: Float[Tensor, "chain *event"],
    *,
    covariance: Tensor | None = None,
) -> Float[Tensor, "chain *event"]:
    """Carry draws from the first noise level to the last along the probability flow, and return them.

    Kutta's 3/8 rule in sigma: four scores a step, order four. With `flow_levels` its error changes no variance by more
    than .5 % and no weight of a mode by more than .005. A last level of 0 removes the noise of the level before it.

    Args:
        target_at: Function from a noise level to a target with the score of the distribution blurred by it, such as
            `fit.at`.
        levels: Noise levels from high to low, such as `flow_levels(2.0, 0.02)`; the last may be 0.
        x: Draws of the distribution blurred by the first level.
        covariance: C of the noise sigma^2 C, such as `fit.covariance`; the identity when None.

    Returns:
        As many draws, each at the end of its path.

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
            fix = "Return a target whose score is that of the distribution blurred by this level."
            raise ValueError(checks.message("target_at to give a target with a score", "one without", fix))
        s = CountedScore(score)(x)
        return -level * (s if coordinates is None else coordinates.precondition(s))

    with torch.inference_mode(), checks.explained():
        x = runge_kutta(drift, x, noisy)
        if to_data:  # one step in sigma^2 leaves a normal distribution its variance; the mean given x would narrow it
            x = x - noisy[-1] / 2 * drift(x, noisy[-1])
    return x.clone()  # an ordinary tensor again


RHO_LIMIT = 1.05  # a variance a tenth too large, in the narrow directions
FALSE_ALARM_RATE = 0.01  # of one test, and of all those of a run together
MEASURED_NUMBERS = 40_000  # coordinates over all measured chains: a standard error of rho of about sqrt(1/2 / 40,000)
LEAST_CHAINS = 16  # of a t-test; fewer where there are not so many
WATCHED_SHARE = 0.03  # of the transitions of a run, in score calls; of its score calls it is less
RELATIVE_STEP = 0.01  # of the difference of scores, in units of the noise
COARSEST_ROUNDING = 1e-3  # of a dtype in which a difference of scores means something: not of bfloat16
# The signs take nothing from the generator of the chains, whose draws stay what they were, and share no seed with it:
# drawn with the seed of the initial points they would be the signs of those.
SIGNS_SEED = 2_718_281_828


class EarlyAnnealingWarning(UserWarning):
    """Chains left noise levels before they had arrived there: they are wider than the distribution."""


class NoiseRatio(NamedTuple):
    """Actual over expected noise of chains at a noise level.

    Args:
        rho: Square root of E|s|^2 over E[-div s]: 1 at equilibrium.
        standard_error: Standard error of rho.
        score_calls: Points at which the score was evaluated for it.
        p_value: Probability of so large a ratio where rho is `RHO_LIMIT`; NaN where nothing could be measured.
    """

    rho: float
    standard_error: float
    score_calls: int
    p_value: float

    @property
    def early(self) -> bool:
        """Whether the chains have more noise than the level, beyond the limit and what is due to chance."""
        return self.p_value < FALSE_ALARM_RATE


def noise_ratio(kernel: Kernel, x: Tensor, level: float, *, chains: int | None = None) -> NoiseRatio:
    """Return the actual over the expected noise of the first chains.

    Args:
        kernel: Kernel of the level, which knows the score.
        x: Points of the chains.
        level: Noise level sigma.
        chains: Number of chains to measure; as many as rho to half a per cent takes by default.
    """
    measured = x[: enough_chains(x) if chains is None else chains]
    signs = rng.normal(tuple(measured.shape), measured, rng.seeded(SIGNS_SEED, x.device)).sign()
    step = RELATIVE_STEP * level
    both = torch.cat([measured, measured + step * signs])
    # never more rows at once than there are chains: the memory of a network may be as large as they need
    with score_calls() as calls:
        scores = [_score(kernel, rows) for rows in both.split(len(x))]
    if any(score is None for score in scores):
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    here, there = torch.cat(scores).chunk(2)  # type: ignore[arg-type]
    square = here.flatten(1).square().sum(1).double()
    bend = -((there - here) * signs).flatten(1).sum(1).double() / step
    return _compared(square, bend)._replace(score_calls=calls.total)


@torch.inference_mode()
def _score(kernel: Kernel, x: Tensor) -> Tensor | None:
    """Return the score that a kernel knows at x, and nothing else that its points would hold."""
    point = kernel.init(x) if kernel.target is None else Point.at(x, kernel.target, frozenset({"score"}))
    return point.score


def _compared(square: Float[Tensor, " chain"], bend: Float[Tensor, " chain"]) -> NoiseRatio:
    """Return the ratio of |s|^2 to -div s, of which one per chain is given; not finite ones are left out."""
    from scipy import special  # here, so that `import scoremh` stays light

    finite = (square + bend).isfinite()
    square, bend = square[finite], bend[finite]
    if len(square) < 2:  # one chain is no sample
        return NoiseRatio(math.nan, math.nan, 0, math.nan)
    excess, ratio = square - RHO_LIMIT**2 * bend, float(square.mean() / bend.mean())
    p_value = float(special.stdtr(len(excess) - 1, -float(excess.mean() / _standard_error(excess))))
    if not ratio > 0:  # where the density is convex along most directions, no ratio of noise is defined
        return NoiseRatio(math.inf, math.inf, 0, p_value)
    error = float(_standard_error(square - ratio * bend) / bend.mean())
    return NoiseRatio(math.sqrt(ratio), error / (2 * math.sqrt(ratio)), 0, p_value)


def _standard_error(values: Float[Tensor, " chain"]) -> Float[Tensor, ""]:
    """Return the standard error of a mean."""
    return values.std() / math.sqrt(len(values))


def enough_chains(x: Float[Tensor, "chain *event"]) -> int:
    """Return how many of the chains tell rho to half a per cent."""
    return min(len(x), max(LEAST_CHAINS, math.ceil(MEASURED_NUMBERS / x[0].numel())))


def affordable_chains(x: Float[Tensor, "chain *event"], steps: Sequence[int]) -> list[int]:
    """Return how many chains to measure at the end of every stage for a small share of the score calls of a run.

    Where the share is not enough for all stages, some of them are measured, the last one among them.

    Args:
        x: Points of the chains.
        steps: Transitions per stage.
    """
    budget = int(WATCHED_SHARE * len(x) * sum(steps)) // 2 if len(x) > 1 else 0  # two score calls for each
    enough = enough_chains(x)
    least, each = min(LEAST_CHAINS, enough), budget // len(steps)
    if each >= least:
        return [min(each, enough)] * len(steps)
    count = budget // least
    ends = {round(len(steps) * (i + 1) / count) - 1 for i in range(count)}
    return [least * (number in ends) for number in range(len(steps))]


def is_measurable(kernel: Kernel, x: Tensor) -> bool:
    """Return whether rho of a kernel's chains means something, and takes nothing but score calls.

    It does not where the kernel asks for no score or does not say what it knows; for a truncated distribution, at whose
    edge Stein's identity fails; and in a dtype whose rounding is as large as a difference of scores.
    """
    target = kernel.target
    known = target is not None and target.score is not None and target.support is None
    return known and torch.finfo(x.dtype).eps <= COARSEST_ROUNDING


MAX_ROUNDS = 4  # how often the steps of a level are made again at most


@dataclass(frozen=True, eq=False)
class Annealed:
    """What `anneal` returns.

    Args:
        draws: Last points of the chains.
        levels: Noise levels, one per stage; the last one twice where there were final steps.
        steps: Transitions per stage.
        acceptance_rates: Share of the candidates that were accepted, per stage.
        score_calls: Points at which the score was evaluated, over all chains and levels.
        accept_above: Noise level below which every candidate was accepted; 0 where none was.
        rho: Actual over expected noise of the chains at the end of every stage, 1 at equilibrium; NaN for stages that
            were not measured, None where none was. `scoremh.annealing.anneal` defines it.
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
    """Lead chains from high noise to low: some steps at every level, each from where the level before ended.

    Args:
        kernel_at: Function from a noise level to the kernel for it. A step size of a fixed multiple of the squared
            level suits all.
        levels: Noise levels from high to low, such as `geometric(5.0, 0.05, 20)`.
        initial: Initial points, one per chain, `(chain, *event)`: noise of the highest level around the data's mean.
        steps_per_level: Transitions at every level.
        final_steps: Transitions at the last level after that.
        accept_above: Noise level below which every candidate is accepted: where the integral of a learned score depends
            on its way, an accept step means little (`diagnostics.lowest_conservative_level`). 0 adjusts everywhere.
        measure_noise: Measure the noise that chains carry at the ends of levels, over what they should (`rho` of the
            result), and warn if it is more than 1.05 times; chains that have arrived are warned of in at most 1 % of
            runs. By default so many chains and levels are measured as 3 % more score calls allow, and none where the
            kernels use no score, do not say what they know of p, or p has a support, or in half precision. True
            measures every level, to half a per cent where there are chains enough, at two score calls for each of up to
            40,000 / d of them; False none. The draws are the same.
        adaptive: Watch as with True, and make as many steps again on such a level, up to four times.
        predict: Go from one level to the next by a step of the probability flow, so that the steps there only correct:
            one score call more for a level. It leads the wide directions down, for which steps of the size of the
            noise are too short. The noise has to be sigma z in the coordinates of the kernels.
        denoise: Return x + sigma^2 s(x) of the last level sigma, the expected data without its noise, where the noise
            is sigma z in the coordinates of the kernels. These draws are less spread than the data.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to. The same call with the same folder resumes from what is there.
        pool: Where blocks of chains are run, as for `sample`.

    Returns:
        Where the chains ended, and how many candidates were accepted at every level.

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
            checks.message("accept_above of at least 0", accept_above, "Leave it out to adjust everywhere.")
        )
    stages = [(level, steps_per_level) for level in levels] + [(levels[-1], final_steps)] * (final_steps > 0)
    measured = _measured_chains(initial, [steps for _, steps in stages], True if adaptive else measure_noise)
    how: dict[str, Any] = {
        "asked": bool(measure_noise or adaptive),
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
    """Return how many chains are measured at the end of every stage."""
    if measure_noise is None:
        return affordable_chains(initial, steps)
    return [enough_chains(initial) if measure_noise else 0] * len(steps)


@dataclass
class _Descent:
    """Chains on their way down, and what was recorded of it."""

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
        asked: bool,
        rounds: int,
        predict: bool,
    ) -> None:
        """Make the steps of a stage, and as many again while the chains have not arrived, for a number of rounds."""
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
            ratio = self.noise_ratio(kernel, level, measured, asked=asked) if measured else None
            if ratio is None or not ratio.early:
                break
        self.steps.append(steps * len(accepted))
        self.rates.append(sum(accepted) / len(accepted))
        self.ratios.append(ratio)

    def noise_ratio(self, kernel: Kernel, level: float, chains: int, *, asked: bool) -> NoiseRatio | None:
        """Return the actual over the expected noise of the first chains, and count its score calls.

        Nobody may have asked for it: then it is None where it means nothing, or where the score refuses so few chains.
        """
        ratio = None
        if asked:
            ratio = noise_ratio(kernel, self.x, level, chains=chains)
            if not ratio.score_calls:
                raise _no_score(kernel, "measure_noise and adaptive")
        elif is_measurable(kernel, self.x):
            with suppress(Exception):  # such as one that knows a condition for every chain
                ratio = noise_ratio(kernel, self.x, level, chains=chains)
        self.score_calls += 0 if ratio is None else ratio.score_calls
        return ratio

    def folder(self, number: int, again: int) -> Path | None:
        """Return where a round of a stage is stored; None where nothing is."""
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
        """Return the record, with the noise of the last level removed from the draws where that is asked for."""
        x = self.moved(kernel_at(stages[-1][0]), stages[-1][0] ** 2) if denoise else self.x
        levels = tuple(level for level, _ in stages)
        rho = tuple(math.nan if ratio is None else ratio.rho for ratio in self.ratios) if any(self.ratios) else None
        return Annealed(x, levels, tuple(self.steps), tuple(self.rates), self.score_calls, self.accept_above, rho)


def _warn_if_early(levels: Sequence[float], ratios: Sequence[NoiseRatio | None]) -> None:
    """Warn of noise levels that the chains left with more noise than they have; `levels` has one for every ratio."""
    at_end = dict(zip(levels, ratios, strict=True))  # of a level with several stages, the last: chains left it then
    measured = {level: ratio for level, ratio in at_end.items() if ratio is not None}
    early = {level: ratio.rho for level, ratio in measured.items() if ratio.p_value < FALSE_ALARM_RATE / len(measured)}
    if early:
        worst, last = max(early, key=early.__getitem__), min(measured)
        places = dict.fromkeys((worst, last))  # one where they are the same
        amounts = " and ".join(f"{measured[level].rho:.3g} times at level {level:.3g}" for level in places)
        text = (
            f"Chains left {len(early)} of {len(measured)} noise levels with more than {RHO_LIMIT} times their noise: "
            f"{amounts}, the last that was measured. They are too wide there. Make more steps per level or "
            "final_steps, pass adaptive=True or predict=True, or tune the step of every level (annealing.tune_steps); "
            "without an accept step, make smaller steps."
        )
        warnings.warn(text, EarlyAnnealingWarning, stacklevel=3)


def _no_score(kernel: Kernel, options: str) -> ValueError:
    """Return the error for a kernel that knows no score."""
    fix = f"Use MALA, or leave {options} out."
    return ValueError(checks.message("kernels that know the score", kernel.description, fix))


def _unadjusted(kernel: Kernel) -> Kernel:
    """Return the kernel without its accept step, and refuse one whose moves do not follow the score."""
    if kernel.unadjusted is None:
        fix = "Use MALA or hamiltonian, or leave accept_above out."
        got = f"{kernel.description}, which goes nowhere without an accept step"
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
    """Return for every noise level the step at which its kernel accepts at its most efficient rate.

    The pilot chains go down with the levels while their steps are tuned, each level from the step of the one before.

    Args:
        make_kernel: Function from a noise level and a step to a kernel, such as
            `lambda level, step: metropolis_hastings(model.at(level), MALA(step * level**2), LineIntegral())`.
        levels: Noise levels from high to low, those of `anneal`.
        initial: Initial points of the pilot chains: noise of the highest level; 50 chains are enough.
        start: First step to try at the highest level.
        target_rate: Acceptance rate to reach; the kernel's own by default.
        steps_per_level: Transitions of the pilot chains at every level, to tune on.
        generator: Random number generator; the same seed gives the same steps.

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
    """Steps that leave the distribution at a noise level as it is, for a predictor-corrector loop of one's own.

    `x = corrector(x, sigma)` makes `steps` transitions at the level that the predictor has arrived at; x is in the
    coordinates x0 + sigma z.

    Args:
        model: Scores at all noise levels, of `scoremh.diffusion` or `fit_score`.
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
        """Refuse bad parameters."""
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
        """Return where the chains are after the steps.

        Args:
            x: Points at this noise level, one per chain.
            sigma: Noise level, one for all chains.
            generator: Random number generator; the same seed gives the same points.
        """
        chains = sample(self.kernel_at(float(sigma)), x, draws=1, thin=self.steps, generator=generator)
        return chains.draws[:, 0]

r"""Sequential Monte Carlo over noise levels: particles that come down together, for posteriors and products of models.

The targets are pi_sigma(x) = p_sigma(x) L_sigma(x), from a high noise level, where particles are easily drawn, to the
posterior. From a level a to the next level b, particles are

1. transported: x' = T(x), by the probability flow of the prior, which carries p_a to p_b. The prior then costs no
   weight and no divergence;
2. weighted by L_b(x') / L_a(x): if x ~ p_a L_a, then x' has the density p_b(x') L_a(x). The product of the mean
   weights estimates the evidence int p(x) L(x) dx;
3. resampled in proportion to the weights, if their effective sample size is below half of the particles;
4. moved by Metropolis-Hastings steps that leave pi_b as it is.

A likelihood that is no bridge is raised to powers, L_sigma = L^beta(sigma). Where the step to L_b would leave less than
half of the effective sample size, it is divided: log L moves from log L_a to log L_b along a straight line.

A product of models, p_sigma = prod_i p_i,sigma^w_i, comes down along dx / d sigma = -sigma (M S + b) with
S = sum_i w_i s_i. No distribution has this flow, so every particle gets the weight (a Feynman-Kac corrector)

    d log w / d sigma = sigma (sum_i w_i (|s_i|^2 + div s_i) - S.(M S + b) - tr(M dS/dx))

with any matrix M and vector b. With M = 1 the divergence cancels. With means m_i and covariances K_i of the models,
Q = sum_i w_i K_i^-1 and m the mean of the product, the weights of normal distributions stay equal if

    M = Q^-1 (sum_i w_i K_i^-2) Q^-1,    b = -2 Q^-1 sum_i w_i K_i^-2 (m - m_i)

A step that leaves less than half of the effective sample size is halved. The first particles are drawn from the product
of the normal distributions that the models are at the highest level. With negative weights the product has to be
normalisable at every level: sum_i w_i (C_i + sigma^2)^-1, with the covariances C_i of the tails, is positive definite.

Step size and covariance of the moves are chosen from the particles before every level and fixed while they are used.
These choices, and that of the levels, make the estimate of the evidence consistent but not exactly unbiased. The flow
is integrated with an error of at most .5 % in every variance (`annealing.flow_levels`).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks, files, rng
from scoremh._shared.algebra import inner, runge_kutta
from scoremh._shared.counting import CountedScore, count, score_calls
from scoremh._shared.progress import progress_bar
from scoremh.acceptance import LineIntegral
from scoremh.annealing.anneal import (
    FLOW_LEVELS_PER_E_FOLD,
    check_levels,
    flow,
    flow_levels,
    geometric,
    reverse_diffusion,
)
from scoremh.coordinates import Affine, Coordinates
from scoremh.diffusion import Conditional, DiffusionModel, together
from scoremh.diffusion.model import jacobian_product, random_directions
from scoremh.kernel import metropolis_hastings
from scoremh.proposals import MALA
from scoremh.sampling.pools import Pool, started
from scoremh.sampling.sample import sample, stored_run
from scoremh.sampling.tuning import StepSearch, aimed_rate, transition
from scoremh.targets import Gaussian, Likelihood, Posterior, Product, from_log_density, product, truncate
from scoremh.targets.combinations import Factors, levels_of
from scoremh.targets.distributions import LEVELS, Blurrable
from scoremh.targets.likelihoods import KnownLikelihood
from scoremh.types import Kernel, Proposal, ScoreFn, ScoreModel, Target, TargetLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Transport = Literal["flow", "reverse"]
MakeProposal = Callable[[float, Tensor], Proposal]
LEAST_SHARE = 0.5  # effective sample size, as a share of the particles, below which they are resampled
STEP_SHARE = 0.9  # of the effective sample size that the step from one level to the next leaves, where smc places them
FIRST_RATIO, LEAST_RATIO, MOST_RATIO = 1.2, 1.02, math.exp(0.5)  # of neighbouring levels; flow_levels at most e^(1/2)
GAIN, MOST_CHANGE = 1.5, 0.7  # of the logarithm of the step size, by the error of the acceptance rate before
DENSE_SIZE = 1024  # coordinates up to which the covariance of moves is a matrix
COVARIANCE_DRAWS, RIDGE = 5, 1e-6  # draws per coordinate below which a covariance from particles is mostly noise
CHECKED_LEVELS = 16  # at which a product with negative weights is checked, if smc places the levels
MOST_DIRECTIONS, MOST_COVARIANCES = 64, 32  # coordinates up to which divergences and covariances are computed
NEARLY_ONE = 0.2  # |M - 1|, and spread of log weights in an e-fold of the level, below which M is 1: no divergence
MOST_RATE = 10.0  # of the fastest direction: beyond, covariances from learned scores do not fit each other
NORMAL_LEVEL, NORMAL_POINTS = 2.0, 512  # noise level over the width, and points, at which covariances are found
WIDEST_RATIO, NARROWEST_RATIO = 100.0, 1e-4  # of such a variance to the mean variance at that level
SHORTEST_RATIO = 1.001  # of two levels between which the way is not halved any more
RATE_STEPS = 2.0  # of the way along summed scores, in an e-fold of their fastest direction
LEAST_STEP = 1e-9  # share of the way to a likelihood
WIDE_DRAWS = 1000  # of the first particles, from which such directions are found
LEAST_WIDTH = 0.05  # |1 - c / variance| of a direction that is much wider or narrower than c
LEAST_PRECISION = 0.01  # of a direction, in units of 1 / c
ROUNDING = 1e-6  # relative: schedules of noise levels are rounded


class Stage(NamedTuple):
    """The record of the particles at one target."""

    level: float
    """Noise level; 0 for the posterior itself."""
    power: float
    """Power to which the likelihood is raised."""
    effective_size: float
    """Effective sample size of the weights, before resampling."""
    resampled: bool
    acceptance_rate: float
    """Share of the moves that were accepted; NaN where none were made."""
    step_size: float
    """Step size of the moves; NaN where the kernel was given, or none were made."""


@dataclass(frozen=True, eq=False)
class Particles:
    """Draws of a posterior by sequential Monte Carlo.

    Args:
        draws: Draws of the posterior, equally weighted.
        log_evidence: log of int p(x) L(x) dx, the normalising constant.
        log_evidence_error: Its standard error, from the spread of the weights over the first particles' families; the
            error of an inaccurate score or flow is not in it.
        stages: What happened at every target, from the highest noise level down.
        families: Number of first particles that have descendants among the draws.
        nonfinite: Number of weights that were NaN or infinite and taken for 0.
        score_calls: Points at which the score was evaluated, over all particles.
    """

    draws: Float[Tensor, "particle *event"]
    log_evidence: float
    log_evidence_error: float
    stages: tuple[Stage, ...]
    families: int
    nonfinite: int
    score_calls: int

    @property
    def levels(self) -> tuple[float, ...]:
        """The noise levels, each once, from high to low; the last is 0, the posterior itself."""
        return tuple(dict.fromkeys(stage.level for stage in self.stages))

    @property
    def effective_sizes(self) -> tuple[float, ...]:
        """Effective sample size at every stage, before resampling."""
        return tuple(stage.effective_size for stage in self.stages)

    @property
    def acceptance_rates(self) -> tuple[float, ...]:
        """Share of the moves that were accepted at every stage."""
        return tuple(stage.acceptance_rate for stage in self.stages)

    @property
    def hints(self) -> list[str]:
        """What to change: sentences on few families, on moves that are rejected, and on weights that are not finite."""
        found, particles = [], len(self.draws)
        if self.families < LEAST_FAMILIES:
            found.append(
                f"all draws descend from {self.families} of {particles} first particles, so that weights of modes and "
                "the evidence are uncertain: use more particles, or a likelihood that takes the noise level"
            )
        rates = [rate for rate in self.acceptance_rates if not math.isnan(rate)]
        if rates and min(rates) < LEAST_RATE:
            found.append(
                f"only {min(rates):.2f} of the moves at a level were accepted: pass a smaller step or kernel_at"
            )
        if self.nonfinite:
            found.append(f"{self.nonfinite} weights were NaN or infinite: look at the likelihood there")
        return found

    def __repr__(self) -> str:
        """Show the shape, the evidence, the stages and the cost, then the hints."""
        particles, *event = self.draws.shape
        rates = [rate for rate in self.acceptance_rates if not math.isnan(rate)]
        moves = f"acceptance {min(rates):.3f} to {max(rates):.3f}" if rates else "no moves"
        text = (
            f"Particles({particles} draws of {tuple(event)}; log evidence {self.log_evidence:.4g} +- "
            f"{self.log_evidence_error:.2g}; {len(self.levels)} levels from noise {self.levels[0]:.3g}, "
            f"{sum(stage.resampled for stage in self.stages)} resamplings, effective sample size at least "
            f"{min(self.effective_sizes):.0f}; {moves}; {self.score_calls:,} score calls)"
        )
        return "\n".join([text, *(f"hint: {hint}" for hint in self.hints)])

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure of effective sample size and acceptance by noise level; needs the extra `report`.

        Args:
            path: Image file to write as well.
        """
        from scoremh.report import images

        figure = images.stages_figure(self.stages, len(self.draws))
        if path is not None:
            images.save_figure(figure, Path(path))
        return figure


LEAST_FAMILIES, LEAST_RATE = 20, 0.1  # below, `Particles` gives a hint


class Bridge(NamedTuple):
    """A log likelihood on the way from one level to the next: a weighted sum of likelihoods, 0 if there are none."""

    terms: tuple[tuple[float, Likelihood], ...] = ()

    def log_density(self, x: Tensor) -> Float[Tensor, " particle"]:
        """Return the weighted sum at x."""
        total = x.new_zeros(len(x))
        with torch.no_grad(), checks.explained():
            for weight, likelihood in self.terms:
                total = total + weight * likelihood.log_density(x)
        return total.double()

    def score(self, x: Tensor) -> Tensor:
        """Return its gradient."""
        return sum((weight * likelihood.score(x) for weight, likelihood in self.terms), torch.zeros_like(x))

    def towards(self, goal: "Bridge", share: float) -> "Bridge":
        """Return the sum a share of the way to another one."""
        if share == 1:
            return goal
        weights: dict[Likelihood, float] = {}
        for factor, bridge in ((1 - share, self), (share, goal)):
            for weight, likelihood in bridge.terms:
                weights[likelihood] = weights.get(likelihood, 0.0) + factor * weight
        return Bridge(tuple((weight, likelihood) for likelihood, weight in weights.items() if weight))

    def precision(self, size: int) -> Tensor | None:
        """Return minus its second derivative, `(size, size)`; None if it is not constant."""
        total = torch.zeros(size, size, dtype=torch.float64)
        for weight, likelihood in self.terms:
            own = likelihood.precision(size)
            if own is None:
                return None
            total = total.to(own.device) + weight * own
        return total

    @property
    def power(self) -> float:
        """The sum of the weights: the power to which one likelihood is raised."""
        return sum((abs(weight) for weight, _ in self.terms), 0.0)

    def times(self, prior: TargetLike) -> TargetLike:
        """Return prior times likelihood."""
        parts, weights = [prior], [1.0]
        for weight, likelihood in self.terms:
            parts.append(likelihood)
            weights.append(weight)
        return prior if len(parts) == 1 else product(*parts, weights=weights)


def smc(
    target: TargetLike,
    *,
    particles: int = 1000,
    levels: Sequence[float] | None = None,
    steps_per_level: int = 5,
    proposal: MakeProposal = MALA,
    kernel_at: Callable[[float], Kernel] | None = None,
    transport: Transport = "flow",
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    pool: Pool = None,
) -> Particles:
    """Draw from a posterior or a product of models that know noise levels, by particles that come down the levels.

    Args:
        target: `targets.posterior(model, likelihood)`, of a model that `fit_score` returns, a diffusion model or a
            normal mixture; or `targets.product(...)` or `targets.temper(model, beta)` of such models, which are then
            all read at the highest of their noise levels.
        particles: Number of particles, at least 2.
        levels: Noise levels from high to low on the way to the target, in the coordinates of the model, such as
            `annealing.geometric(5.0, 0.1, 40)`; None places them by the effective sample size, from the highest that
            the model knows. The target itself comes after the last of them.
        steps_per_level: Metropolis-Hastings steps at every level.
        proposal: Function from a step size and a covariance, which are chosen from the particles, to the proposal of
            the moves: `MALA`, or `RandomWalk` for a likelihood without a gradient.
        kernel_at: Function from a noise level to the kernel of `target.at(level)`, to choose all of it; it is called
            with 0 for the target itself. None builds one of `proposal` and `LineIntegral()`.
        transport: "flow" carries particles from level to level by the prior's probability flow; "reverse" by its
            reverse diffusion, with fresh noise, in more and shorter steps. It is for posteriors only, and less
            accurate in many dimensions: the weights then vary more.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to. The same call with the same folder resumes from what is there, and ends with the same
            bits as a run that was never interrupted.
        pool: Where blocks of particles are moved, as for `sample`. The draws do not depend on it.

    Returns:
        Equally weighted draws and the evidence, with what happened at every level.

    Example:
        >>> import torch
        >>> from scoremh import smc, targets
        >>> prior = targets.GaussianMixture([0.5, 0.5], [[-3.0, 0.0], [3.0, 0.0]])
        >>> posterior = targets.posterior(prior, targets.linear_observation([[1.0, 1.0]], [2.0], std=0.5))
        >>> found = smc(posterior, particles=500, generator=torch.Generator().manual_seed(0))
        >>> found.draws.shape
        torch.Size([500, 2])
        >>> abs(found.log_evidence - -2.09) < 0.2
        True
    """
    checks.count(particles, "particles", at_least=2)
    checks.count(steps_per_level, "steps_per_level")
    checks.one_of(transport, get_args(Transport), "transport")
    problem = _Problem.of(target)
    high, low = problem.span
    if levels is not None:
        _check_levels(levels, *((math.inf, 0.0) if problem.exact else (high, low)))
        levels, high, low = list(levels), levels[0], levels[-1]
    if problem.models[0][0] != 1 or len(problem.models) > 1:
        if transport != "flow":
            raise ValueError(checks.message('transport="flow" of a product', repr(transport), "Leave it out."))
        problem.require_normalizable(levels or [*geometric(high, low, CHECKED_LEVELS), problem.noise_level])
    if kernel_at is not None:
        for level in (high, 0.0):  # now, and not after a long run
            checks.kind(kernel_at(level), Kernel, "kernel_at to return a Kernel", "Build it of target.at(level).")
    bar = progress_bar(100, "particles", unit="per cent", show=progress)
    with stored_run(store) as folder, started(pool) as workers, bar as tick:
        settings = {"particles": particles, "levels": None if levels is None else list(levels), "transport": transport}
        settings |= {"steps_per_level": steps_per_level}
        seed = _seed(folder, settings if folder is None else settings | problem.described(), generator)
        descent = _Descent(problem, particles, high, seed, transport, proposal, kernel_at, steps_per_level)
        descent.options, descent.folder = {"pool": workers}, folder
        for level in descent.path(levels, high, low):
            descent.to(level)
            done = 1.0 if level == 0 else math.log(high / max(level, low)) / math.log(high / low) if high > low else 0.0
            tick(
                int(100 * done) - descent.shown, f"noise {level:.3g}, {descent.stages[-1].effective_size:.0f} effective"
            )
            descent.shown = int(100 * done)
    return descent.finished()


def _check_levels(levels: Sequence[float], high: float, low: float) -> None:
    """Raise an error unless levels fall and the model knows them all."""
    check_levels(levels)
    if any(b >= a for a, b in itertools.pairwise(levels)):
        fix = "Use annealing.geometric(high, low, n), for example."
        raise ValueError(checks.message("levels from high to low, each below the one before", list(levels), fix))
    if levels[0] > high * (1 + ROUNDING) or levels[-1] < low * (1 - ROUNDING):
        fix = "Choose levels in this range; posterior(model.at(level), ...) reads the prior at another level."
        expected = f"levels from at most {high:g} to at least {low:g}, where the prior is read"
        raise ValueError(checks.message(expected, f"{levels[0]:g} to {levels[-1]:g}", fix))


def _seed(folder: Path | None, settings: dict[str, Any], generator: torch.Generator | None) -> int:
    """Return the random seed of a run, which a folder keeps beside its settings."""
    seed = rng.seeds(1, generator)[0]
    if folder is None:
        return seed
    path = folder / "smc.json"
    if not path.exists():
        files.write_json(path, settings | {"seed": seed})
    found = files.read_json(path, "Delete the folder, and begin again.")
    same = settings if generator is None else settings | {"seed": seed}
    files.require_same(same, found, path, "run", "folder")
    return int(found["seed"])


class Normal(NamedTuple):
    """A normal distribution and the noise that blurs it: N(mean, covariance + sigma^2 noise) at noise level sigma."""

    mean: Tensor
    covariance: Tensor
    noise: Tensor

    def precision(self, level: float) -> Tensor:
        """Return the inverse covariance at a noise level."""
        inverse: Tensor = torch.linalg.inv(self.covariance + level**2 * self.noise)
        return inverse


def root_of(model: ScoreModel) -> Tensor:
    """Return the matrix L of the affine coordinates x = m + L u of a model; raise an error for other coordinates."""
    coordinates, event = model.coordinates, model.event
    assert event is not None
    if not isinstance(coordinates, Affine):
        fix = "Fit without heavy_tails, or use replica_exchange."
        raise ValueError(checks.message("models in affine coordinates", type(coordinates).__name__, fix))
    axes = torch.eye(event.numel(), dtype=torch.float64).to(event).reshape(-1, *event.shape)
    root: Tensor = coordinates.color(axes).flatten(1).double().mT
    return root


@torch.no_grad()
def normal_of(model: ScoreModel) -> Normal:
    """Return the normal distribution with the mean and covariance of a model.

    At a high noise level the score of a model in its coordinates u is nearly -P (u - m). P is found by least squares at
    normal points. Large events count as equally wide in all directions.
    """
    if isinstance(model, Blurrable):
        weights, means, covariances = (part.double() for part in model._components_of)
        away = means - weights @ means
        between = away.mT @ (weights[:, None] * away)
        within = torch.einsum("k,kij->ij", weights, covariances)
        return Normal(weights @ means, within + between, torch.eye(means.shape[1]).to(means))
    root, event = root_of(model), model.event
    assert event is not None
    assert model.noise_range is not None
    low, high = model.noise_range
    level = min(max(NORMAL_LEVEL * math.sqrt(model.variance), low), high)
    c, size, centre = model.variance + level**2, event.numel(), torch.zeros(event.numel()).to(root)
    covariance = model.variance * torch.eye(size).to(root)
    if size <= MOST_COVARIANCES:
        u = math.sqrt(c) * rng.normal((NORMAL_POINTS, *event.shape), event, rng.seeded(0, event.device))
        score = model.standard.at(level).score
        assert score is not None
        with checks.explained():
            up, down = CountedScore(score)(torch.cat([u, -u])).flatten(1).double().chunk(2)
        slopes = torch.linalg.lstsq(u.flatten(1).double(), (up - down) / 2).solution  # -P
        values, v = torch.linalg.eigh(-(slopes + slopes.mT) / 2)
        values = values.clamp(1 / (level**2 + WIDEST_RATIO * c), 1 / (level**2 + NARROWEST_RATIO * c))
        covariance = v @ (1 / values - level**2).diag() @ v.mT
        centre = v @ ((v.mT @ (up + down).mean(0) / 2) / values)
    mean: Tensor = model.coordinates(centre.to(event).reshape(1, *event.shape))[0].flatten().double()
    return Normal(mean, root @ covariance @ root.mT, root @ root.mT)


def tails_of(model: ScoreModel, normal: Normal) -> Normal:
    """Return the tails of a model: those of the widest component of a mixture; else equally wide in all directions.

    Covariances from learned scores are too inaccurate in narrow directions to decide whether a product is normalisable.
    """
    if isinstance(model, Blurrable):
        covariances = model._components_of[2].double()
        return normal._replace(covariance=covariances[int(covariances.diagonal(dim1=1, dim2=2).sum(1).argmax())])
    return normal._replace(covariance=model.variance * normal.noise)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The target of the particles: a product of models with noise levels, times likelihoods."""

    target: TargetLike
    models: tuple[tuple[float, ScoreModel], ...]
    likelihoods: tuple[tuple[float, Likelihood], ...]
    prior: TargetLike | None = None
    drifts: dict[float, "Drift"] = field(default_factory=dict)

    @classmethod
    def of(cls, target: TargetLike) -> "_Problem":
        """Return the models and likelihoods of a target."""
        if isinstance(target, Posterior):
            found = cls(target, ((1.0, target.model),), ((1.0, target.likelihood),), target.prior)
        else:
            factors = target.blurred if isinstance(target, Target | Product) else None
            if not isinstance(factors, Factors):
                fix = "Build it with targets.posterior(model, likelihood), of a model that knows noise levels."
                expected = "a posterior or a product of models that know noise levels"
                raise TypeError(checks.message(expected, checks.describe(target), fix))
            models = tuple((weight, model) for weight, part in factors.flat if (model := levels_of(part)) is not None)
            rest = [(weight, part) for weight, part in factors.flat if levels_of(part) is None]
            found = cls(target, models, tuple((weight, known_likelihood(part)) for weight, part in rest))
        for _, model in found.models:
            if model.event is None:
                fix = "Pass like= to the adapter, some samples or the shape of an event."
                raise ValueError(checks.message("a model that knows the shape of an event", checks.named(model), fix))
        return found

    @property
    def exact(self) -> bool:
        """Whether all models are normal mixtures, which are known without noise."""
        return all(isinstance(model, Blurrable) for _, model in self.models) and not (
            isinstance(self.target, Posterior) and self.target.noise_level
        )

    @property
    def noise_level(self) -> float:
        """The noise level at which the target is read, the highest of its parts; 0 if it is known without noise."""
        return 0.0 if self.exact else max(model.noise_level or 0.0 for _, model in self.models)

    @property
    def span(self) -> tuple[float, float]:
        """The highest noise level that all models know, and the lowest on the way to the target."""
        high = min(model.noise_range[1] for _, model in self.models if model.noise_range is not None)
        return high, self.noise_level or self.least_level

    @cached_property
    def least_level(self) -> float:
        """The level from which the last noise is removed: the lowest that all models know.

        Normal mixtures know all levels; theirs is small beside their narrowest component.
        """
        if not self.exact:
            return max(model.noise_range[0] for _, model in self.models if model.noise_range is not None)
        mixtures = [model for _, model in self.models if isinstance(model, Blurrable)]
        narrowest = min(float(torch.linalg.eigvalsh(each._components_of[2].double()).min()) for each in mixtures)
        return LEVELS[0] * math.sqrt(narrowest)

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates of the first model."""
        return self.models[0][1].coordinates

    @torch.no_grad()
    def described(self) -> dict[str, str]:
        """Return the log likelihood and the scores of the models at a few points, to compare with a store."""
        model = self.models[0][1]
        assert model.event is not None
        u = rng.normal((3, *model.event.shape), model.event, rng.seeded(0, model.event.device))
        x = model.coordinates(math.sqrt(model.variance) * u)
        prior = self.models_at(self.span[1]).score
        assert prior is not None
        with checks.explained():
            values = {"the log likelihood": self.likelihood_at(0.0).log_density(x), "the prior's score": prior(x)}
        return {
            f"{name} at three points": ", ".join(f"{number:.5g}" for number in value.reshape(3, -1)[:, 0].tolist())
            for name, value in values.items()
        }

    @cached_property
    def normals(self) -> list[Normal]:
        """Normal distributions with the means and covariances of the models."""
        return [normal_of(model) for _, model in self.models]

    @cached_property
    def groups(self) -> list[tuple[tuple[float, ...], ScoreModel]]:
        """Weights and models; models of one network under several conditions are one model with as many weights."""
        several = [(weight, model) for weight, model in self.models if _is_conditional(model)]
        joint = together([model for _, model in several]) if len(several) > 1 else None  # type: ignore[misc]
        if joint is None:
            return [((weight,), model) for weight, model in self.models]
        rest = [((weight,), model) for weight, model in self.models if not _is_conditional(model)]
        return [(tuple(weight for weight, _ in several), joint), *rest]

    def models_at(self, level: float) -> TargetLike:
        """Return the product of the models at a noise level; of a posterior at the last, the prior with its support."""
        if level == 0 and self.prior is not None:
            return self.prior
        parts, powers = [], []
        for weights, model in self.groups:
            at = model.at(level or self.noise_level)
            assert at.score is not None
            parts.append(at if len(weights) == 1 else Target(JointScore(at.score, weights)))
            powers.append(weights[0] if len(weights) == 1 else 1.0)
        return parts[0] if powers == [1.0] else product(*parts, weights=powers)

    def likelihood_at(self, level: float) -> "Bridge":
        """Return the likelihood of a noise level."""
        terms = ((weight, part.at(level, self.coordinates) if level else part) for weight, part in self.likelihoods)
        return Bridge(tuple(terms))

    @property
    def is_bridge(self) -> bool:
        """Whether the likelihood takes the noise level."""
        return all(part.at(1.0, self.coordinates).is_bridge for _, part in self.likelihoods)

    def require_normalizable(self, levels: Sequence[float]) -> None:
        """Raise an error if the product of the models cannot be normalised at one of these levels."""
        for level in levels:
            precisions = [
                weight * tails_of(model, normal).precision(level)
                for (weight, model), normal in zip(self.models, self.normals, strict=True)
            ]
            values, vectors = torch.linalg.eigh(torch.stack(precisions).sum(0))
            if not float(values[0]) > 0:
                direction = [round(number, 3) for number in vectors[:, 0].tolist()]
                where = f"at level {level:.3g} in the direction {checks.short(direction)}"
                got = f"a precision of {float(values[0]):.3g} {where}"
                fix = (
                    "Give less weight to the parts that are divided by, or to the narrow ones among the others. A "
                    "diffusion model counts as equally wide in all directions: rescale x if it is not."
                )
                raise ValueError(checks.message("a product that can be normalised at every noise level", got, fix))

    def first(self, n: int, level: float, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        """Return draws of a high noise level, their log weights, and the log of the normalising constant."""
        (weight, model), *others = self.models
        event = model.event
        assert event is not None
        nothing = torch.zeros(n, dtype=torch.float64, device=event.device)
        if weight == 1 and not others:
            return first_particles(model, n, level, generator), nothing, 0.0
        parts, precision, pull = self.normal_product(level)
        constants = [
            w * (torch.logdet(own / (2 * math.pi)) - part.mean @ own @ part.mean) / 2 for w, own, part in parts
        ]
        log_total = float(torch.stack(constants).sum())
        precision = (precision + precision.mT) / 2
        normal = Gaussian(torch.linalg.solve(precision, pull), torch.linalg.inv(precision))
        log_total += float(pull @ normal.mean - torch.logdet(precision / (2 * math.pi))) / 2
        flat = normal.sample(n, generator=generator)
        x = flat.to(event).reshape(n, *event.shape)
        at = self.models_at(level).log_density
        return x, nothing if at is None else at(x).double() - normal.log_density(flat) - log_total, log_total

    def normal_product(self, level: float) -> tuple[list[tuple[float, Tensor, Normal]], Tensor, Tensor]:
        """Return weights, precisions P_i and normal distributions at a noise level, sum w_i P_i and sum w_i P_i m_i."""
        parts = [(w, part.precision(level), part) for (w, _), part in zip(self.models, self.normals, strict=True)]
        precision = torch.stack([w * own for w, own, _ in parts]).sum(0)
        return parts, precision, torch.stack([w * own @ part.mean for w, own, part in parts]).sum(0)

    def drift(self, level: float) -> "Drift":
        """Return M and b of the way at a noise level, and the rate of its fastest direction."""
        if level not in self.drifts:
            parts, whole, pull = self.normal_product(level)
            centre = torch.linalg.solve(whole, pull)
            squares = [(weight * own @ part.noise @ own, part.mean) for weight, own, part in parts]
            inverse, noise = torch.linalg.inv(whole), self.normals[0].noise
            matrix = inverse @ torch.stack([square for square, _ in squares]).sum(0) @ inverse
            offset = -2 * inverse @ torch.stack([square @ (centre - mean) for square, mean in squares]).sum(0)
            spread = level**2 * float((whole @ (matrix - noise)).norm() + (offset @ whole @ offset).clamp(min=0).sqrt())
            rates = [level**2 * float(torch.linalg.matrix_norm(each @ whole, 2)) for each in (noise, matrix)]
            sure = float(torch.linalg.eigvalsh(whole)[0]) > 0 and rates[1] < max(rates[0], MOST_RATE)
            alike = float((matrix - noise).norm()) < NEARLY_ONE * float(noise.norm()) and spread < NEARLY_ONE
            plain = len(whole) > MOST_DIRECTIONS or alike or not sure
            self.drifts[level] = Drift(None if plain else matrix, offset, rates[0 if plain else 1])
        return self.drifts[level]

    def carried(self, x: Tensor, high: float, low: float) -> tuple[Tensor, Tensor]:
        """Return particles carried along the summed scores from one noise level to another, and their log weights."""

        def rate(state: Tensor, level: float) -> Tensor:
            at, drift = state[:, :-1].reshape(x.shape), self.drift(level)
            total, moved, gain = torch.zeros_like(at), torch.zeros_like(at), x.new_zeros(len(x))
            for weights, model in self.groups:
                parts = scores_along(model, at, level, len(weights), drift.matrix)
                for weight, (score, along, divergence) in zip(weights, parts, strict=True):
                    total, moved = total + weight * score, moved + weight * along
                    gain = gain + weight * (inner(score, along) + divergence)
            if drift.matrix is not None:
                flat = total.flatten(1) @ drift.matrix.to(x) + drift.offset.to(x)
                moved = flat.reshape(x.shape)
            return level * torch.cat([-moved.flatten(1), (gain - inner(moved, total))[:, None]], 1)

        lowest = low or min(high, self.least_level)
        steps = max(FLOW_LEVELS_PER_E_FOLD, RATE_STEPS * max(self.drift(high).rate, self.drift(lowest).rate))
        levels = geometric(high, lowest, 1 + math.ceil(steps * math.log(high / lowest))) if lowest < high else [high]
        with torch.inference_mode(), checks.explained():
            start = torch.cat([x.flatten(1), x.new_zeros(len(x), 1)], 1)
            end = runge_kutta(rate, start, levels if low else [*levels, 0.0])
        return end[:, :-1].reshape(x.shape).clone(), end[:, -1].double().clone()


class Drift(NamedTuple):
    """The way of a product from one noise level to the next."""

    matrix: Tensor | None
    """M; None for the sum of the models' own flows, which needs no divergence."""
    offset: Tensor
    """b."""
    rate: float
    """Rate of the fastest direction, per e-fold of the noise level."""


def scores_along(
    model: ScoreModel, x: Tensor, level: float, n: int, matrix: Tensor | None
) -> list[tuple[Tensor, Tensor, Tensor | float]]:
    """Return the scores s of n models that share a network, C s with the covariance C of their noise, and a divergence.

    Args:
        model: Model, of n conditions if n is above 1.
        x: Points.
        level: Noise level.
        n: Number of models.
        matrix: Matrix M of div (C s - M s); None for 0 in its place.
    """
    coordinates = model.coordinates
    assert isinstance(coordinates, Affine)  # `root_of` checks this
    if matrix is None:
        score = model.at(level).score
        assert score is not None
        return [(s, coordinates.precondition(s), 0.0) for s in scores_of(CountedScore(score), x, n)]
    u, score, inverse = coordinates.inverse(x), model.standard.at(level).score, torch.linalg.inv(root_of(model))
    assert score is not None
    many = u.repeat(n, *(1,) * (u.ndim - 1))
    size = u[0].numel()
    directions = torch.eye(size).to(u) if model.probes is None else random_directions(size, u, model.probes)
    count(len(many) * (1 + len(directions)))
    left = directions - directions @ (inverse @ matrix @ inverse.mT).to(u)
    scores, divergences = jacobian_product(lambda at, _: score(at), many, level, directions, left)
    each = zip(scores.chunk(n), divergences.chunk(n), strict=True)
    return [(coordinates.push_gradient(s, u), coordinates.color(s), d) for s, d in each]


def scores_of(score: ScoreFn, x: Tensor, n: int) -> tuple[Tensor, ...]:
    """Return the scores of n models that share a network, in one call."""
    return score(x.repeat(n, *(1,) * (x.ndim - 1))).chunk(n)


@dataclass(frozen=True, eq=False)
class JointScore:
    """The weighted sum of the scores of several models that share a network, in one call.

    Args:
        score: Score of all of them, for a batch with a block of rows for each.
        weights: Weights of the models.
    """

    score: ScoreFn
    weights: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the weighted sum at x."""
        return torch.stack(
            [w * s for w, s in zip(self.weights, scores_of(self.score, x, len(self.weights)), strict=True)]
        ).sum(0)


def _is_conditional(model: ScoreModel) -> bool:
    return isinstance(model, DiffusionModel) and isinstance(model.net, Conditional)


def known_likelihood(part: TargetLike) -> Likelihood:
    """Return a part without noise levels as a likelihood."""
    if isinstance(part, Likelihood):
        return part
    if part.log_density is None:
        fix = "Give it a log density, or use a model that knows noise levels."
        raise ValueError(checks.message("parts with noise levels or a log density", checks.describe(part), fix))
    score = part.score or from_log_density(part.log_density).score
    return KnownLikelihood(Target(score, part.log_density))


def first_particles(model: ScoreModel, n: int, level: float, generator: torch.Generator) -> Float[Tensor, "n *event"]:
    """Return draws of the prior at a high noise level: exact ones of a normal mixture, else of a normal distribution.

    Its covariance in coordinates u is c I, c = variance + level^2, except in directions v that are much wider or
    narrower, as of correlated coordinates. The score -P (u - m) shows them: r = u + c s(u) is c P m + (I - c P) u, and
    the principal directions of r are those of I - c P.

    Args:
        model: Prior at all noise levels.
        n: Number of draws.
        level: Noise level, at which the prior is nearly normal.
        generator: Random number generator.
    """
    if isinstance(model, Blurrable):
        return model.at(level).sample(n, generator=generator)
    assert model.event is not None
    c, score = model.variance + level**2, model.standard.at(level).score
    assert score is not None
    u = math.sqrt(c) * rng.normal((n, *model.event.shape), model.event, generator)
    with torch.no_grad(), checks.explained():
        r = (u + c * CountedScore(score)(u)).flatten(1).double()
    flat = u.flatten(1).double()
    mean, away = r.mean(0), (r - r.mean(0))[:WIDE_DRAWS]
    sizes, v = torch.linalg.svd(away / math.sqrt(c * len(away)), full_matrices=False)[1:]
    sizes, v = sizes[sizes > LEAST_WIDTH], v[sizes > LEAST_WIDTH]
    along = flat @ v.mT
    signs = (along[:WIDE_DRAWS] * (away @ v.mT)).sum(0).sign()  # of 1 - c v^T P v, negative in narrow directions
    precisions = (1 - signs * sizes).clamp(min=LEAST_PRECISION)  # c v^T P v
    mean = mean + (1 / precisions - 1) * (v @ mean - along.mean(0)) @ v
    flat = mean + flat + along * (precisions.rsqrt() - 1) @ v
    x: Tensor = model.coordinates(flat.to(u).reshape(u.shape))
    return x


@dataclass
class _Descent:
    """The particles at a noise level, and the record of the run so far."""

    problem: _Problem
    particles: int
    level: float
    seed: int
    transport: Transport
    proposal: MakeProposal
    kernel_at: Callable[[float], Kernel] | None
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    stages: list[Stage] = field(default_factory=list)
    bridge: Bridge = field(default_factory=Bridge)
    log_evidence: float = 0.0
    nonfinite: int = 0
    score_calls: int = 0
    power: float = 0.0
    ratio: float = FIRST_RATIO
    step_size: float | None = None
    shown: int = 0

    def __post_init__(self) -> None:
        event = self.problem.models[0][1].event
        assert event is not None  # `_Problem.of` has looked
        self.generator = rng.seeded(self.seed, event.device)
        with score_calls() as calls:
            self.x, log_weights, self.log_evidence = self.problem.first(self.particles, self.level, self.generator)
        self.score_calls += calls.total
        self.log_likelihood = self.x.new_zeros(self.particles, dtype=torch.float64)
        self.log_weights = self.log_likelihood - math.log(self.particles)
        self.families = torch.arange(self.particles, device=self.x.device)
        self.weight(log_weights, self.level)

    def path(self, levels: Sequence[float] | None, high: float, low: float) -> Iterator[float]:
        """Yield the noise levels: those that are given, or placed by the effective sample size; then 0."""
        if levels is not None:
            yield from levels
        else:
            yield high
            while self.level > low:
                level = self.level / self.ratio
                yield low if level < low * LEAST_RATIO else level
        yield 0.0

    def to(self, level: float) -> None:
        """Transport the particles to a level; weight, resample and move them, in several stages if one is too many."""
        start, end = self.level, level or self.problem.noise_level
        x, own = self.transported(start, end)
        middle = math.sqrt(start * end) if end else start / 2
        if self.stages and effective_share(self.log_weights, own) < LEAST_SHARE and start > middle * SHORTEST_RATIO:
            self.to(middle)  # half of the way first
            self.to(level)
            return
        coming_down = bool(self.stages) and level > 0
        # log L_a(x), less the change of the log weights on the way
        self.x, self.level, before = x, end, self.log_likelihood - own
        goal, here, share = self.goal(level), self.bridge.log_density(self.x), 0.0  # log L_a(x')
        while share < 1:
            there = self.values(goal, level)  # log L_b(x')
            left = effective_share(self.log_weights, log_factors(before, here, there, 1.0))
            if coming_down:
                # -log(left) grows with the square of the step in log sigma
                factor = math.sqrt(math.log(STEP_SHARE) / math.log(min(max(left, 1e-6), 0.999)))
                self.ratio **= min(max(factor, 0.5), 2.0)
                self.ratio, coming_down = min(max(self.ratio, LEAST_RATIO), MOST_RATIO), False
            share = 1.0 if left >= LEAST_SHARE else largest_share(self.log_weights, before, here, there)
            size = self.weight(log_factors(before, here, there, share), level)
            self.bridge = self.bridge.towards(goal, share)
            resampled = self.resampled(size, last=level == 0 and share == 1)
            rate, step_size = self.moved(level, complete=share == 1)
            power = self.bridge.power / (self.problem.likelihood_at(0.0).power or 1.0)
            self.stages.append(Stage(level, power, size, resampled, rate, step_size))
            before = here = self.log_likelihood = self.bridge.log_density(self.x)

    def transported(self, start: float, end: float) -> tuple[Tensor, Tensor]:
        """Return the particles at another level, and the change of their log weights."""
        nothing = torch.zeros_like(self.log_weights)
        if not self.stages or end == start:
            return self.x, nothing
        (weight, model), *others = self.problem.models
        alone = weight == 1 and not others
        with score_calls() as calls:
            carried = (self.flowed(model, start, end), nothing) if alone else self.problem.carried(self.x, start, end)
        self.score_calls += calls.total
        return carried

    def flowed(self, model: ScoreModel, start: float, end: float) -> Tensor:
        """Return the particles at another level of one model, along its flow or its reverse diffusion."""
        assert model.noise_range is not None
        standard, u = model.standard, model.coordinates.inverse(self.x)
        low = end or min(start, self.problem.least_level)  # the last noise is removed in one step
        levels = [start] if low == start else flow_levels(start, low)
        if self.transport == "reverse" and low < start:
            u, levels = reverse_diffusion(standard.at, start, low, u, generator=self.generator), [low]
        if len(levels) > 1 or end == 0:
            u = flow(standard.at, levels if end else [*levels, 0.0], u)
        x: Tensor = model.coordinates(u)
        return x

    def goal(self, level: float) -> Bridge:
        """Return the likelihood of a level.

        Without a bridge it is raised to the largest power whose weights keep half of the effective sample size if
        noise of this level is added to the particles; the power never falls.
        """
        whole, coordinates = self.problem.likelihood_at(level), self.problem.coordinates
        if level == 0 or self.problem.is_bridge:
            return whole
        u = coordinates.inverse(self.x)
        noisy = coordinates(u + level * rng.normal(tuple(u.shape), u, self.generator))
        here, there = (whole.log_density(x) for x in (self.x, noisy))
        self.power = max(self.power, largest_share(self.log_weights, here, here, there))
        return Bridge(tuple((self.power * weight, likelihood) for weight, likelihood in whole.terms))

    def values(self, bridge: Bridge, level: float) -> Tensor:
        """Return a log likelihood at the particles; at the last level -inf outside the support of the target."""
        value, support = bridge.log_density(self.x), self.problem.target.support
        self.nonfinite += int((value.isnan() | (value == math.inf)).sum())
        if level == 0 and support is not None:
            value = value.masked_fill(~checks.inside(support(self.x), self.x), -math.inf)
        return value

    def weight(self, log_factor: Float[Tensor, " particle"], level: float) -> float:
        """Multiply the weights, and return the effective sample size."""
        log_weights = self.log_weights + log_factor
        total = torch.logsumexp(log_weights, 0)
        if total == -math.inf:
            got = f"0 at all {self.particles} particles at noise level {level:g}"
            fix = (
                "Check the log likelihood at draws of the prior, where particles come from. Give it tails, or a "
                "bridge: a function of x and the noise level that is wider at high levels."
            )
            raise ValueError(checks.message("a likelihood that is positive at some particles", got, fix))
        self.log_evidence += float(total)
        self.log_weights = log_weights - total
        self.error = family_error(self.log_weights, self.families)
        return float((-torch.logsumexp(2 * self.log_weights, 0)).exp())

    def resampled(self, size: float, *, last: bool) -> bool:
        """Resample the particles if their effective sample size is low, some have no weight, or these are the draws."""
        uneven = float(self.log_weights.max() - self.log_weights.min()) > 0
        if not (size < LEAST_SHARE * self.particles or (last and uneven) or bool(self.log_weights.isneginf().any())):
            return False
        chosen = systematic(self.log_weights.exp(), self.generator)
        self.x, self.families = self.x[chosen], self.families[chosen]
        self.log_weights = torch.full_like(self.log_weights, -math.log(self.particles))
        return True

    def moved(self, level: float, *, complete: bool) -> tuple[float, float]:
        """Make the Metropolis-Hastings steps of a stage; return the acceptance rate and the step size."""
        if self.kernel_at is not None:
            # the user's kernels are for given levels and the whole likelihood, not for what is in between
            if not complete or not (level == 0 or self.problem.is_bridge or self.power == 1):
                return math.nan, math.nan
            kernel, step_size = self.kernel_at(level), math.nan
        else:
            kernel, step_size = self.tuned(level)
        place = None if self.folder is None else self.folder / f"stage-{len(self.stages):04}"
        chains = sample(kernel, self.x, draws=1, thin=self.steps, generator=self.generator, store=place, **self.options)
        self.x, rate = chains.draws[:, 0], chains.acceptance_rate
        self.score_calls += chains.score_calls
        if self.step_size is not None and kernel.target_rate is not None:
            change = GAIN * (rate - kernel.target_rate)
            self.step_size *= math.exp(min(max(change, -MOST_CHANGE), MOST_CHANGE))
        return rate, step_size

    def tuned(self, level: float) -> tuple[Kernel, float]:
        """Return the kernel of a stage, with a covariance from the particles, and its step size."""
        prior, support = self.problem.models_at(level), self.problem.target.support
        target = self.bridge.times(prior)
        if level == 0 and support is not None:
            target = truncate(target, support)
        with score_calls() as calls:
            covariance = self.covariance(prior)

            def make_kernel(step_size: float) -> Kernel:
                return metropolis_hastings(target, self.proposal(step_size, covariance), LineIntegral())

            if self.step_size is None:
                kernel = make_kernel(1.0)
                search, point = StepSearch(1.0, aimed_rate(kernel, None)), kernel.init(self.x)
                while not search.bracketed:
                    search.update(transition(make_kernel(search.step), point, self.generator)[1])
                self.step_size = search.step
        self.score_calls += calls.total
        return make_kernel(self.step_size), self.step_size

    @torch.no_grad()
    def covariance(self, prior: TargetLike) -> Tensor:
        """Return a covariance for the moves, `(d, d)` or for large events `(d,)`, from the weighted particles.

        With scores s of the target its inverse is E[s s^T], which is local if there are several modes; for moves
        without a score it is the covariance of the particles. The fewer particles, the more of it is replaced: by its
        diagonal, or by the variances of the prior's scores plus the precision of a linear observation.
        """
        flat, weights = self.x.flatten(1).double(), self.log_weights.exp()
        d, n = flat.shape[1], float(1 / weights.square().sum())
        dense, trust = d <= DENSE_SIZE, max(0.0, 1 - COVARIANCE_DRAWS * d / n)

        def second_moment(rows: Tensor, *, dense: bool) -> Tensor:
            return rows.mT @ (weights[:, None] * rows) if dense else weights @ rows.square()

        def joined(matrix: Tensor, simple: Tensor) -> Tensor:
            whole = trust * matrix + (1 - trust) * simple
            diagonal = whole.diagonal() if dense else whole
            ridge = RIDGE * diagonal.mean()
            return whole + (ridge * torch.eye(d, dtype=whole.dtype, device=whole.device) if dense else ridge)

        if "score" not in self.proposal(1.0, self.x.new_ones(d)).needs:
            away = flat - weights @ flat
            variances = second_moment(away, dense=False)
            simple = variances.diag() if dense else variances
            return joined(second_moment(away, dense=dense), simple).to(self.x)
        assert prior.score is not None
        own = CountedScore(prior.score)(self.x).flatten(1).double()
        scores, known = own + self.bridge.score(self.x).flatten(1).double(), self.bridge.precision(d)
        simple = second_moment(scores if known is None else own - weights @ own, dense=False)
        simple = simple.diag() if dense else simple
        if known is not None:
            simple = simple + (known if dense else known.diagonal())
        precision = joined(second_moment(scores, dense=dense), simple)
        found = torch.linalg.inv(precision) if dense else 1 / precision
        return ((found + found.mT) / 2 if dense else found).to(self.x)

    def finished(self) -> Particles:
        """Return the draws and the record."""
        return Particles(
            draws=self.x.clone(),
            log_evidence=self.log_evidence,
            log_evidence_error=self.error,
            stages=tuple(self.stages),
            families=len(self.families.unique()),
            nonfinite=self.nonfinite,
            score_calls=self.score_calls,
        )


def log_factors(before: Tensor, here: Tensor, there: Tensor, share: float) -> Float[Tensor, " particle"]:
    """Return log [L_a(x')^(1 - share) L_b(x')^share / L_a(x)]; -inf if a number is not finite.

    Args:
        before: log L_a(x), before the transport.
        here: log L_a(x'), after it.
        there: log L_b(x').
        share: Share of the way from L_a to L_b.
    """
    change = there - before if share == 1 else here - before + share * (there - here)
    return change.masked_fill(~change.isfinite(), -math.inf)


def largest_share(log_weights: Tensor, before: Tensor, here: Tensor, there: Tensor) -> float:
    """Return the largest share of the way that leaves half of the effective sample size that a tiny share leaves."""

    def left(share: float) -> float:
        return effective_share(log_weights, log_factors(before, here, there, share))

    low, high = LEAST_STEP, 1.0  # their logarithms are halved: a sharp likelihood begins with a very small share
    least = LEAST_SHARE * left(low)
    if left(high) >= least:
        return high
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if left(middle) >= least else (low, middle)
    return low


def effective_share(log_weights: Float[Tensor, " particle"], change: Float[Tensor, " particle"]) -> float:
    """Return (E w)^2 / E w^2 of factors w of the weights: the share of the effective sample size that they leave.

    Args:
        log_weights: Normalised weights before, over which the means are taken.
        change: Logarithms of the factors.
    """
    first, second = (torch.logsumexp(log_weights + power * change, 0) for power in (1, 2))
    return float((2 * first - second).exp().nan_to_num(0))


def systematic(weights: Float[Tensor, " particle"], generator: torch.Generator) -> Int[Tensor, " particle"]:
    """Return the numbers of resampled particles: each n w times, rounded up or down at random."""
    n = len(weights)
    places = (torch.arange(n).to(weights) + rng.uniform((1,), weights, generator)) / n
    sums = weights.cumsum(0)
    # `right`, so that no particle of weight 0 is chosen; rounding must not lead past the last positive weight
    return torch.searchsorted(sums / sums[-1], places, right=True).clamp(max=int(weights.nonzero().max()))


def family_error(log_weights: Float[Tensor, " particle"], families: Int[Tensor, " particle"]) -> float:
    """Return the standard error of the log evidence, from the weights of the first particles' families.

    Independent particles have a relative variance of the mean weight of (n sum W^2 - 1) / (n - 1); after resampling,
    a family takes the place of a particle (Chan and Lai 2013; Lee and Whiteley 2018).

    Args:
        log_weights: Normalised weights at the end.
        families: Number of the first particle that each descends from.
    """
    n = len(families)
    shares = log_weights.new_zeros(n).index_add_(0, families, log_weights.exp())
    return math.sqrt(max(0.0, (n * float(shares.square().sum()) - 1) / (n - 1)))

"""`Sampler`: draws of the data from pure noise, by Metropolis-Hastings with a noise-conditional score.

A noise-conditional score is, at every noise level sigma, the score of the data blurred by noise N(0, sigma^2 I). Chains
run in the coordinates u of the score, in which the data have mean 0 (and unit covariance if the score was learned):

1. `start` draws broad noise, u ~ N(0, variance + sigma^2) at the highest level.
2. `descend` carries it along the probability flow down to `noise_level`, where modes are still connected: a learned
   score is wrong between modes, and the region between modes determines their weights. `anneal` does so by MALA at
   falling levels, which takes longer and needs no flow.
3. `tune` finds the step size at which the proposal has its most efficient acceptance rate.
4. `run` makes steps of the kernel on the data blurred by `noise_level`, and
5. `carry_down` moves its draws along the probability flow to the data themselves, in the coordinates x of the data.

`sample` does all of this except the tuning. Chains that start from the flow are nearly right; a few groups of moves,
decided by log p through noise, correct what the flow got wrong, and the records count the groups that were rejected.
`sample_where` draws rows that fulfil a condition: it draws until enough
do or, if few do, runs chains on the blurred data restricted to the points that the flow carries to such rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh import annealing
from scoremh._shared import checks, rng
from scoremh._shared.counting import count, score_calls
from scoremh._shared.names import ProposalName
from scoremh.acceptance import Always, Learned, LineIntegral, Rule, ThroughNoise
from scoremh.balance_matching import AcceptanceFit, FormName, fit_acceptance
from scoremh.kernel import grouped, metropolis_hastings
from scoremh.networks import Free
from scoremh.proposals import MALA, PCN, RandomWalk, StudentWalk
from scoremh.sampling import Chains, tune
from scoremh.sampling.pools import Pool, pool_for, run_jobs, started
from scoremh.sampling.sample import Job, jobs_of, sample
from scoremh.targets import posterior, truncate
from scoremh.types import Kernel, Proposal, ScoreModel, TargetLike

__all__ = ["ANNEALING_LEVELS", "ANNEALING_STEP_SIZE", "ProposalName", "Sampler"]


GUIDED_STEPS = 20  # transitions at every level of an annealing towards a condition
ANNEALING_LEVELS, ANNEALING_STEP_SIZE = 15, 0.5  # number of levels; step size of MALA over the squared noise level
GROUP_SIZE, MOST_CORRECTED = 10, 32  # moves decided together; coordinates of an event up to which they are
MIN_SHARE_TO_REJECT = 0.05  # of draws that fulfil a condition; with fewer, chains are restricted to it
MIN_TRIED, MIN_FOUND = 1000, 20  # draws of the first batch; draws that fulfil it, from which chains start
RESTRICTED_STEPS = 300  # at least, of chains that start from few draws that fulfil a condition
MIN_TUNED, TUNING_STEPS = 200, 100  # chains and steps of tuning under a condition
FLOW_CHUNK_ROWS, FIRST_STEP_SIZE = 10_000, 0.05  # rows carried down at once; the step size that tuning tries first


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draw from the data of a noise-conditional score, starting from noise.

    Args:
        score: Score at all noise levels: the result of `fit_score`, a model of `scoremh.diffusion`, or a normal mixture
            of `scoremh.targets`.
        noise_level: Noise level at which the kernel runs, in the coordinates u: in units of the data's spread if
            the score was learned.
        proposal: "mala" (Langevin), "rw" (random walk), "pcn" (preconditioned Crank-Nicolson) or "student" (random walk
            with steps of Student's distribution, for heavy tails).
        acceptance: Acceptance rule, or a learned acceptance: a free form is used as it was trained, others with
            Metropolis's rule. None integrates the score: by Simpson's rule for MALA; for the longer moves of
            other proposals by "lobatto" if moves are grouped, otherwise by "exact".
        step_size: Step size h of MALA, standard deviation of the walk (its scale, for "student") in units of the
            standard deviation of the blurred data, or beta of pCN; None if it is still to be tuned.
        group_size: Number of moves that log p through noise accepts or rejects together. The acceptance rule is
            accurate for short moves; log p through noise is accurate for the weights of modes, and for wells that a
            learned score has where there were no data. "auto" means 10 for events of up to 32 coordinates and None for
            larger ones, where log p is too expensive: it needs a tangent per coordinate. None leaves every move to the
            acceptance rule, and so do rules without a ratio, such as `Always`.
        accept_above: Noise level below which annealing accepts every candidate, as in `anneal`.
        like: Shape of an event, such as `(3, 32, 32)`, or some events, if the score has no event shape. A diffusion
            model has one if it was made with `like`.

    Example:
        >>> import torch
        >>> from scoremh import Recipe, Sampler, datasets, fit_score
        >>> g = torch.Generator().manual_seed(0)
        >>> score = fit_score(datasets.moons(500, generator=g), recipe=Recipe(steps=20), generator=g)
        >>> sampler = Sampler(score, noise_level=0.3).tune(100, steps=20, generator=g)
        >>> sampler.sample(50, annealing_steps=1, chain_steps=10, generator=g).last.shape
        torch.Size([50, 2])
    """

    score: ScoreModel
    noise_level: float = 0.3
    proposal: ProposalName = "mala"
    acceptance: Rule | AcceptanceFit | None = None
    step_size: float | None = None
    group_size: int | Literal["auto"] | None = "auto"
    accept_above: float = 0.0
    like: Tensor | Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Raise an error for invalid parameters."""
        fix = "Pass what fit_score returned, a model of scoremh.diffusion or a normal mixture of scoremh.targets."
        checks.kind(self.score, ScoreModel, "a score at all noise levels", fix)
        checks.one_of(self.proposal, get_args(ProposalName), "proposal")
        if not isinstance(self.acceptance, AcceptanceFit | None):
            checks.kind(self.acceptance, Rule, "an acceptance rule", "Pass LineIntegral(), for example.")
        checks.positive(self.noise_level, "noise_level")
        self.score.at(self.noise_level)  # raises an error if the level is out of range
        if self.group_size is not None and self.group_size != "auto":
            checks.count(self.group_size, "group_size")
        if self.step_size is not None:
            checks.positive(self.step_size, "step_size", ", or leave it out and call tune()")

    def start(
        self, n: int, *, noise_level: float | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "chain *event"]:
        """Draw n points u of a normal distribution with the variance of the data blurred by a noise level.

        Args:
            n: Number of points.
            noise_level: Noise level; by default the highest of the score.
            generator: Random number generator; the same seed gives the same points.
        """
        checks.count(n, "n")
        level = self.noise_range[1] if noise_level is None else noise_level
        event = self._event
        return math.sqrt(self.score.variance + level**2) * rng.normal((n, *event.shape), event, generator)

    def descend(
        self, n: int, *, generator: torch.Generator | None = None, pool: Pool = None
    ) -> Float[Tensor, "chain *event"]:
        """Draw n points u at the kernel's noise level: broad noise, carried down along the probability flow.

        Args:
            n: Number of points.
            generator: Random number generator; the same seed gives the same points.
            pool: Pool that moves blocks of 10,000 points, as for `sample`.
        """
        levels = annealing.flow_levels(self.noise_range[1], self.noise_level)
        return self._flow(self.start(n, generator=generator), levels, pool)

    def anneal(
        self,
        n: int,
        steps_per_level: int,
        *,
        levels: Sequence[float] | None = None,
        measure_noise: bool | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
        store: str | Path | None = None,
        pool: Pool = None,
    ) -> annealing.Annealed:
        """Run n chains from the highest noise level down to that of the kernel, in the coordinates u.

        Args:
            n: Number of chains.
            steps_per_level: Transitions at each level.
            levels: Noise levels from high to low; by default 15 that end at the kernel's.
            measure_noise: Measure whether the chains have the noise of their level, and warn if not, as `anneal` does.
                `tune` and `sample` turn it off, because their chains continue at the last level.
            generator: Random number generator; the same seed gives the same chains.
            progress: Show a progress bar.
            store: Folder from which an interrupted call resumes.
            pool: Pool that runs blocks of chains, as for `sample`.
        """
        if levels is None:
            levels = annealing.karras(self.noise_range[1], self.noise_level, ANNEALING_LEVELS)
        rule = self.acceptance if isinstance(self.acceptance, Always) else LineIntegral("simpson")

        def kernel_at(level: float) -> Kernel:
            return metropolis_hastings(self.score.standard.at(level), MALA(ANNEALING_STEP_SIZE * level**2), rule)

        start = self.start(n, noise_level=levels[0], generator=generator)
        return annealing.anneal(
            kernel_at,
            levels,
            start,
            steps_per_level=steps_per_level,
            accept_above=self.accept_above,
            measure_noise=measure_noise,
            generator=generator,
            progress=progress,
            store=store,
            pool=pool,
        )

    def tune(
        self,
        start: int | Tensor,
        *,
        steps: int = 300,
        annealing_steps: int = 0,
        generator: torch.Generator | None = None,
        progress: bool = False,
        pool: Pool = None,
    ) -> "Sampler":
        """Return the sampler with the step size at which its proposal has the most efficient acceptance rate.

        The rate is measured with the integrated score: `Always` accepts everything, and an acceptance can only be
        learned once the step size is known.

        Args:
            start: Number of chains, or points u at the kernel's noise level.
            steps: Transitions to tune on.
            annealing_steps: Transitions at every level of an annealing, if `start` is a number; 0 starts the chains by
                the probability flow.
            generator: Random number generator; the same seed gives the same step size.
            progress: Show a progress bar.
            pool: Pool that anneals blocks of chains, as for `sample`; this process tunes the step size on all chains.
        """
        if not isinstance(start, Tensor):
            start, _ = self._at_level(start, annealing_steps, generator=generator, progress=progress, pool=pool)
        step_size = tune(
            lambda step_size: metropolis_hastings(self.target, self.proposal_at(step_size), self.integral),
            start,
            start=FIRST_STEP_SIZE,
            upper=1.0 if self.proposal == "pcn" else math.inf,
            steps=steps,
            generator=generator,
            progress=progress,
        )
        return replace(self, step_size=step_size)

    def run(
        self,
        start: Float[Tensor, "chain *event"],
        steps: int,
        *,
        draws: int = 1,
        generator: torch.Generator | None = None,
        progress: bool = False,
        store: str | Path | None = None,
        pool: Pool = None,
    ) -> Chains:
        """Make steps of the kernel from points u, and carry its draws down to rows x of the data.

        Args:
            start: Points u, one per chain.
            steps: Transitions of every chain.
            draws: Number of draws to keep of every chain, including the last. If there are more draws than groups of
                moves, the draws inside a group have not passed the test through noise yet.
            generator: Random number generator; the same seed gives the same draws.
            progress: Show a progress bar.
            store: Folder from which an interrupted call resumes.
            pool: Pool that runs blocks of chains, as for `sample`.
        """
        if draws > steps:
            raise ValueError(checks.message(f"draws of at most steps={steps}", draws, "Keep fewer draws."))
        thin = steps // draws
        if (size := self._group_size) is not None and thin >= size:
            thin -= thin % size  # so that draws are the ends of groups, after the test through noise
        levels = annealing.flow_levels(self.noise_level, self.noise_range[0])
        with started(pool) as workers:
            chains = sample(
                self.kernel,
                start,
                draws=draws,
                burn_in=steps - thin * draws,
                thin=thin,
                generator=generator,
                progress=progress,
                store=store,
                pool=workers,
            )
            with score_calls() as calls:
                rows = self.carry_down(chains.draws.flatten(0, 1), levels, pool=workers)
        total = chains.score_calls + calls.total
        return replace(chains, draws=rows.reshape(chains.draws.shape), score_calls=total)

    def carry_down(
        self, u: Float[Tensor, "chain *event"], levels: Sequence[float] | None = None, *, pool: Pool = None
    ) -> Float[Tensor, "chain *event"]:
        """Move draws u along the probability flow down to rows x of the data.

        Args:
            u: Draws of the data blurred by the first of the levels.
            levels: Noise levels from high to low; by default from the kernel's to the lowest of the score. The noise
                of the last level is removed in one step.
            pool: Pool that moves blocks of 10,000 draws, as for `sample`.
        """
        levels = annealing.flow_levels(self.noise_level, self.noise_range[0]) if levels is None else levels
        return self.score.coordinates(self._flow(u, (*levels, 0.0), pool))  # type: ignore[no-any-return]

    def _flow(self, u: Tensor, levels: Sequence[float], pool: Pool) -> Tensor:
        """Return points u carried along the probability flow from the first level to the last, in blocks."""
        jobs = jobs_of(u.split(FLOW_CHUNK_ROWS), kind="draws")
        work = partial(_carried_down, self.score.standard.at, levels)
        ends = {}
        for job, (part, calls) in run_jobs(pool_for(pool, jobs), work, jobs):
            ends[job.block] = part
            count(calls)
        return torch.cat([ends[job.block] for job in jobs])

    def sample(
        self,
        n: int,
        *,
        annealing_steps: int = 0,
        chain_steps: int = 300,
        draws: int = 1,
        generator: torch.Generator | None = None,
        progress: bool = False,
        store: str | Path | None = None,
        pool: Pool = None,
    ) -> Chains:
        """Run n chains from noise to the data: start, anneal, run, carry down.

        Args:
            n: Number of chains.
            annealing_steps: Transitions at every level of an annealing; 0 starts the chains by the probability flow.
            chain_steps: Transitions of the kernel after that.
            draws: Number of draws to keep of every chain, including the last.
            generator: Random number generator; the same seed gives the same draws.
            progress: Show a progress bar.
            store: Folder from which an interrupted call resumes.
            pool: Pool that runs blocks of chains, as for `scoremh.sample`.
        """
        with started(pool) as workers:
            start, calls = self._at_level(
                n,
                annealing_steps,
                generator=generator,
                progress=progress,
                store=store and Path(store) / "annealing",
                pool=workers,
            )
            chains = self.run(
                start,
                chain_steps,
                draws=draws,
                generator=generator,
                progress=progress,
                store=store and Path(store) / "chains",
                pool=workers,
            )
        return replace(chains, score_calls=chains.score_calls + calls)

    def _at_level(
        self,
        n: int,
        annealing_steps: int,
        *,
        generator: torch.Generator | None,
        progress: bool,
        store: Path | str | None = None,
        pool: Pool,
    ) -> tuple[Tensor, int]:
        """Return n points u at the kernel's noise level, annealed or from the probability flow, and the score calls."""
        if annealing_steps == 0:
            with score_calls() as calls:
                start = self.descend(n, generator=generator, pool=pool)
            return start, calls.total
        options: dict[str, Any] = {"generator": generator, "progress": progress, "store": store, "pool": pool}
        annealed = self.anneal(n, annealing_steps, measure_noise=False, **options)
        return annealed.draws, annealed.score_calls

    def sample_where(
        self,
        n: int,
        holds: Callable[[Tensor], Tensor],
        *,
        log_likelihood: Callable[[Tensor, float], Tensor] | None = None,
        annealing_steps: int = 0,
        chain_steps: int = 300,
        generator: torch.Generator | None = None,
        progress: bool = False,
        pool: Pool = None,
    ) -> Float[Tensor, "draw *event"]:
        """Draw rows x that fulfil a condition, from the distribution of `sample` given the condition.

        If at least 5 % of a first batch of draws fulfil it, more are drawn until there are enough: the draws are
        independent and exact. Otherwise chains start at the draws that fulfil it, and run on the blurred data
        restricted to the points u that the probability flow carries to such rows, with a step size of their own and the
        integrated score. This leaves the distribution invariant; chains that start from the same draw need the steps
        to separate.

        Args:
            n: Number of rows.
            holds: Function of rows x that returns for which the condition holds, `(draw,)`.
            log_likelihood: Function of points u and a noise level, `(draw,)`, that is large near the condition. It
                guides annealed chains to it if fewer than 20 draws fulfil it.
            annealing_steps: Transitions at every level of an annealing; 0 starts the chains by the probability flow,
                and makes 20 if they are guided.
            chain_steps: Transitions of the kernel after that; at least 300 of chains restricted to the condition.
            generator: Random number generator; the same seed gives the same rows.
            progress: Show progress bars.
            pool: Pool that runs blocks of chains, as for `sample`.
        """

        def draw(count: int, guide: Callable[[Tensor, float], Tensor] | None = None) -> tuple[Tensor, Tensor]:
            u = self._points(count, annealing_steps, chain_steps, guide, generator, progress=progress, pool=pool)
            x = self.carry_down(u, pool=pool)
            there = holds(x)
            return u[there], x[there]

        tried = max(n, MIN_TRIED)
        u, x = draw(tried)
        share = len(x) / tried
        while share >= MIN_SHARE_TO_REJECT and len(x) < n:
            more = draw(math.ceil(1.1 * (n - len(x)) / share) + MIN_FOUND)[1]
            x = torch.cat([x, more])
        if len(x) >= n:
            return x[:n]
        if len(u) < MIN_FOUND and log_likelihood is not None:
            u = torch.cat([u, draw(tried, log_likelihood)[0]])
        if not len(u):
            fix = "Check the condition: no row may fulfil it, or so few that the score has not learned them."
            raise ValueError(checks.message("a condition that some draws fulfil", f"none of {2 * tried:,}", fix))
        start = u[torch.arange(n, device=u.device) % len(u)]
        restricted = truncate(self.target, lambda points: holds(self.carry_down(points)))
        integrated = replace(self, acceptance=None)
        step_size = tune(
            lambda step_size: metropolis_hastings(restricted, self.proposal_at(step_size), self.integral),
            start[:MIN_TUNED],
            start=FIRST_STEP_SIZE,
            upper=1.0 if self.proposal == "pcn" else math.inf,
            steps=min(chain_steps, TUNING_STEPS),
            generator=generator,
        )
        kernel = replace(integrated, step_size=step_size).kernel_on(restricted)
        steps = max(RESTRICTED_STEPS, chain_steps)
        chains = sample(kernel, start, draws=1, thin=steps, generator=generator, progress=progress)
        return self.carry_down(chains.last, pool=pool)

    def _points(
        self,
        n: int,
        annealing_steps: int,
        chain_steps: int,
        log_likelihood: Callable[[Tensor, float], Tensor] | None,
        generator: torch.Generator | None,
        *,
        progress: bool,
        pool: Pool,
    ) -> Tensor:
        """Return points u of the blurred data; with a log likelihood, chains annealed on its product with the data."""
        if log_likelihood is None:
            start, _ = self._at_level(n, annealing_steps, generator=generator, progress=progress, pool=pool)
            return sample(
                self.kernel, start, draws=1, thin=chain_steps, generator=generator, progress=progress, pool=pool
            ).last
        levels = annealing.karras(self.noise_range[1], self.noise_level, ANNEALING_LEVELS)

        def kernel_at(level: float) -> Kernel:
            guided = posterior(self.score.standard.at(level), lambda u: log_likelihood(u, level))
            return metropolis_hastings(guided, MALA(ANNEALING_STEP_SIZE * level**2), LineIntegral())

        start = self.start(n, noise_level=levels[0], generator=generator)
        return annealing.anneal(
            kernel_at,
            levels,
            start,
            steps_per_level=annealing_steps or GUIDED_STEPS,
            measure_noise=False,
            generator=generator,
        ).draws

    def learn_acceptance(
        self,
        rows: Float[Tensor, "row *event"],
        form: FormName,
        *,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> "Sampler":
        """Return the sampler with an acceptance learned for its proposal and step.

        Args:
            rows: Rows of the data to learn from.
            form: "free" (the paper's), "antisymmetric" or "potential".
            generator: Random number generator; the same seed gives the same acceptance.
            options: Further arguments of `fit_acceptance`.
        """
        blurred = self.blur(rows, generator=generator)
        acceptance = fit_acceptance(
            self.target,
            self.tuned_proposal,
            blurred,
            form=form,
            generator=generator,
            **{"standardize": False, **options},  # u is standard already
        )
        return replace(self, acceptance=acceptance)

    def blur(
        self, rows: Float[Tensor, "row *event"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "row *event"]:
        """Return rows x of the data in the coordinates u, plus noise of the kernel's level.

        Args:
            rows: Rows of the data.
            generator: Random number generator; the same seed gives the same noise.
        """
        return self.score.coordinates.inverse(rows) + self.noise_level * rng.normal(tuple(rows.shape), rows, generator)

    @property
    def noise_range(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the score."""
        return self.score.noise_range or (math.nan, math.nan)

    @property
    def target(self) -> TargetLike:
        """The data blurred by the noise level."""
        return self.score.standard.at(self.noise_level)

    def proposal_at(self, step_size: float) -> Proposal:
        """Return the proposal with this step size, scaled to the spread of the blurred data."""
        spread = math.sqrt(self.score.variance + self.noise_level**2)
        if self.proposal == "mala":
            return MALA(step_size)
        if self.proposal == "student":
            return StudentWalk(step_size * spread, freedom=1)
        return RandomWalk(step_size * spread) if self.proposal == "rw" else PCN(step_size, scale=spread)

    @property
    def rule(self) -> Rule:
        """The acceptance rule."""
        if isinstance(self.acceptance, LineIntegral) and self.proposal == "student":
            return self.integral
        if not isinstance(self.acceptance, AcceptanceFit):
            return self.acceptance or self.integral
        return Learned(self.acceptance, "direct" if isinstance(self.acceptance.net, Free) else "metropolis")

    @property
    def integral(self) -> LineIntegral:
        """The rule that integrates the score along moves as long as the proposal's."""
        if self.proposal == "mala":
            return LineIntegral("simpson")
        # a long step must not miss the mass: u has mean 0 and unit covariance
        coordinates = (0.0, 1.0) if self.proposal == "student" else None
        return LineIntegral("exact" if self._group_size is None else "lobatto", coordinates=coordinates)

    @property
    def tuned_proposal(self) -> Proposal:
        """The proposal with the sampler's step size."""
        if self.step_size is None:
            raise ValueError(checks.message("a step size", "none", "Call tune() first, or pass step_size=..."))
        return self.proposal_at(self.step_size)

    @property
    def kernel(self) -> Kernel:
        """The kernel of `run`."""
        return self.kernel_on(self.target)

    def kernel_on(self, target: TargetLike) -> Kernel:
        """Return the kernel of `run` on a restriction of its target.

        Args:
            target: The target, or the target on a smaller support.
        """
        if (size := self._group_size) is None or not self.rule.antisymmetric:
            return metropolis_hastings(target, self.tuned_proposal, self.rule)
        return grouped(target, self.tuned_proposal, self.rule, ThroughNoise(), group_size=size)

    @property
    def _group_size(self) -> int | None:
        """The number of moves that log p through noise decides together; None if it decides none."""
        if self.group_size != "auto":
            return self.group_size
        return GROUP_SIZE if self._event.numel() <= MOST_CORRECTED else None

    @property
    def _event(self) -> Tensor:
        """An event of the data's shape, dtype and device."""
        if isinstance(self.like, Tensor):
            checks.events(self.like, "like")
            return self.like[0]
        known = self.score.event
        if self.like is not None:
            return torch.zeros(tuple(self.like)) if known is None else known.new_zeros(tuple(self.like))
        if known is None:
            fix = "Pass like=(3, 32, 32), for example, or like=samples."
            raise ValueError(checks.message("a score with an event shape", "one without", fix))
        return known


def _carried_down(at: Callable[[float], TargetLike], levels: Sequence[float], job: Job) -> tuple[Tensor, int]:
    """Return a block of draws at the last level, and the number of score calls; may run in another process."""
    with score_calls(apart=True) as calls:
        rows = annealing.flow(at, levels, job.initial)
    return rows, calls.total

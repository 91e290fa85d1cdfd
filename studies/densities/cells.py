"""Measurements: the error of log p, its normalisation, held-out likelihoods, growing dimension, and limits."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh import LineIntegral, Point, ScoreFit, Target, annealing, diffusion
from scoremh._shared.counting import score_calls
from scoremh.networks import NoiseConditionalMLP
from studies.densities import peers
from studies.densities.chains import BETAS, CHAINED, RULES, Chains
from studies.densities.distributions import DISTRIBUTIONS, Known, Student, two_modes
from studies.densities.fits import Config, Fit, blur, timed, trained
from studies.framework import Cell, Record, grid, runner
from studies.learning import seeded

NODES: dict[diffusion.Path, int] = {"radial": 8, "fixed": 12}
ESTIMATES = ("through noise", "flow", "kernel", "spline flow")
TRUTHS = ("truth", "truth, blurred")
LINE = LineIntegral("gauss", nodes=64)
TOO_FEW_STEPS = 20  # of a training, to see what the flow makes of a bad fit
INNER, OUTER, COARSE = 5.0, 10.0, 80  # standard deviations of the fine grid and of the coarse one, cells of its side


def rms(x: Tensor) -> float:
    """Return the root mean square; 0 of nothing."""
    return float(x.square().mean().sqrt()) if len(x) else 0.0


def differences(error: Float[Tensor, " draw"], modes: Tensor) -> Record:
    """Return the rms error of differences of log p, of random pairs in two modes and in one."""
    other = torch.randperm(len(error), generator=seeded(5))
    change, same = error - error[other], modes == modes[other]
    return {"between": rms(change[~same]), "within": rms(change[same])}


def fresh(known: Known, n: int, seed: int) -> Tensor:
    """Return points that no fit has seen."""
    return known.sample(n, generator=seeded(2, seed))


class Error(Cell, kind="error"):
    """The error of log p along a path, against the truth at the level of the fit, and what it costs."""

    distribution: str
    path: diffusion.Path
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        return errors(known, fit, fresh(known, config.points, self.seed), self.path)


def errors(known: Known, fit: ScoreFit, x: Tensor, path: diffusion.Path = "radial") -> Record:
    """Return the errors of log p at points, in nats, and its cost per point."""
    nodes = NODES[path]
    with torch.inference_mode(), score_calls() as made:
        log_p, seconds = timed(lambda: diffusion.log_density(fit, x, nodes=nodes, path=path))
    error = log_p.double() - known.log_density(x, blur(fit))
    found = differences(error, known.modes(x, blur(fit)))
    found |= {"mean": float(error.mean()), "rms": rms(error), "largest": float(error.abs().quantile(0.99))}
    return found | {"calls": made.total / len(x), "seconds_per_1000": 1000 * seconds / len(x)}


class Line(Cell, kind="line"):
    """The error of the same fit's line integrals between the same pairs of points."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        x = fresh(known, config.points, self.seed)
        other, target = torch.randperm(len(x), generator=seeded(5)), Target(fit.score)
        current, proposed = (Point.at(some, target, frozenset({"score"})) for some in (x[other], x))
        with torch.inference_mode():
            change = LINE.log_density_change(current, proposed, target=target).double()
        true, modes = known.log_density(x, blur(fit)), known.modes(x, blur(fit))
        error, same = change - (true - true[other]), modes == modes[other]
        return {"between": rms(error[~same]), "within": rms(error[same])}


class Total(Cell, kind="total"):
    """The integral of exp(log p), the weights of modes by it, and its difference to the probability flow's log p."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        with torch.inference_mode():
            draws, through, flow = flow_draws(fit, config.draws, self.seed)
            ratio = (through - flow).exp()
            found = {"total": float(ratio.mean()), "error": float(ratio.std()) / math.sqrt(len(ratio))}
            if draws.shape[1] == 2:
                found = {"total": total_on_grid(fit, config.cells), "error": 0.0, "by_flow": found["total"]}
            return found | {"weights": weights_error(known, fit, fresh(known, config.points, self.seed), self.seed)}


def flow_draws(fit: ScoreFit, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return draws of the probability flow in standard coordinates, and their log p through noise and by the flow."""
    low, high = diffusion.noise_span(fit)
    standard, size = fit.standard, fit.support.low.numel()
    noise = math.sqrt(1 + high**2) * torch.randn(n, size, generator=seeded(10, seed))
    draws = annealing.flow(standard.at, annealing.flow_levels(high, low), noise)
    through, flow = diffusion.log_density(standard, draws), diffusion.flow_log_density(standard, draws)
    return draws, through.double(), flow.double()


def total_on_grid(fit: ScoreFit, cells: int) -> float:
    """Return the sum of exp(log p) over cells of the plane in standard coordinates: fine ones within, coarse beyond."""
    total = 0.0
    for reach, side in ((INNER, cells), (OUTER, COARSE)):
        width = 2 * reach / side
        axis = width * (torch.arange(side) + 0.5) - reach
        points = torch.cartesian_prod(axis, axis)
        points = points if reach == INNER else points[(points.abs() > INNER).any(1)]
        total += float(diffusion.log_density(fit.standard, points).double().exp().sum()) * width**2
    return total


def weights_error(known: Known, fit: ScoreFit, x: Tensor, seed: int) -> float:
    """Return the total variation between the weights of modes by log p and the true ones.

    With draws of the truth at the level of the fit, the weight of a mode is the mean of p_fit / p over those in it.
    """
    root = torch.linalg.cholesky(blur(fit))
    x = x + (torch.randn(x.shape, generator=seeded(11, seed)).double() @ root.T).to(x)
    parts = known.components(x, blur(fit))
    with torch.inference_mode():
        log_p = diffusion.log_density(fit, x).double()
    ratio, shares = (log_p - parts.logsumexp(1)).exp(), parts.softmax(1)
    by_fit, true = (weights @ shares / weights.sum() for weights in (ratio, torch.ones_like(ratio)))
    return float((by_fit - true).abs().sum()) / 2


class HeldOut(Cell, kind="held_out"):
    """The mean log likelihood of fresh rows by one method."""

    distribution: str
    method: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        x, rows = known.sample(config.samples, generator=seeded(0, self.seed)), fresh(known, config.rows, self.seed)
        more: Record = {}
        if self.method == "through noise":
            log_p = diffusion.log_density(fit, rows)
        elif self.method == "flow":
            log_p = diffusion.flow_log_density(fit, rows)
            more["difference"] = float((log_p - diffusion.log_density(fit, rows)).double().std())
        elif self.method == "kernel":
            log_p = peers.kernel_log_density(x, rows)
        elif self.method == "spline flow":
            allowed = runner.earlier(Fit(self.distribution, self.seed), folder)["seconds"]
            log_p, more = peers.spline_log_density(x, rows, seconds=allowed, generator=seeded(12, self.seed))
        else:
            log_p = known.log_density(rows, blur(fit) if self.method == TRUTHS[1] else None)
        return {"value": float(log_p.double().mean()), **more}


class Growth(Cell, kind="growth"):
    """Two modes in more and more dimensions, with a training of fewer steps."""

    dimension: int

    def measure(self, config: Config, folder: Path) -> Record:
        return grown(two_modes(self.dimension), config)


class Whitened(Cell, kind="whitened"):
    """The same in coordinates that have unit covariance, which beyond 32 of them `fit_score` does not see to."""

    dimension: int

    def measure(self, config: Config, folder: Path) -> Record:
        return grown(two_modes(self.dimension, whitened=True), config)


def grown(known: Known, config: Config) -> Record:
    """Return the errors of a fit of fewer steps."""
    seed = config.seeds[0]
    fit, seconds = trained(known, config, config.dimension_steps, seed)
    found = errors(known, fit, fresh(known, config.points // 2, seed))
    return found | {"training": seconds, "level": fit.noise_level}


class Agreement(Cell, kind="agreement"):
    """How far through noise and the flow agree on Moons after a training that is much too short."""

    steps: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, seed = DISTRIBUTIONS["moons"][1], config.seeds[0]
        fit, x = trained(known, config, self.steps, seed)[0], fresh(known, config.points, seed)
        difference = diffusion.log_density(fit, x) - diffusion.flow_log_density(fit, x)
        return errors(known, fit, x) | {"difference": float(difference.double().std())}


class HeavyTails(Cell, kind="heavy_tails"):
    """The Student t with two degrees of freedom, whose variance is infinite: errors by distance from the middle."""

    low: float
    high: float

    def measure(self, config: Config, folder: Path) -> Record:
        known, seed, path = Student(), config.seeds[0], folder / "student.safetensors"
        if not path.exists():
            trained(known, config, config.steps, seed)[0].save(path)
        fit, x = ScoreFit.load(path), fresh(known, config.points, seed)
        distance = x.norm(dim=1)
        low, high = (float(distance.quantile(share)) for share in (self.low, self.high))
        some = x[(distance >= low) & (distance <= high)]
        sharp = known.log_density(some) - known.log_density(some, blur(fit))
        return errors(known, fit, some) | {"level": fit.noise_level, "by_blur": rms(sharp), "from": low, "to": high}


@dataclass(eq=False, repr=False)
class Probed(ScoreFit):
    """A fit in standard coordinates whose divergence is estimated along a few fixed directions."""

    directions: int

    @property
    def probes(self) -> int:
        """The number of directions."""
        return self.directions

    def level_score(self, x: Tensor, sigma: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the score and Hutchinson's estimate of its divergence."""
        assert isinstance(self._inside, NoiseConditionalMLP)
        return self._inside.level_score(x, sigma, diffusion.random_directions(x.shape[1], x, self.directions))


class Hutchinson(Cell, kind="hutchinson"):
    """The last of the distributions with an exact divergence, 0 probes, or one estimated along a few."""

    probes: int

    def measure(self, config: Config, folder: Path) -> Record:
        name, seed = list(DISTRIBUTIONS)[-1], config.seeds[0]
        known, fit = DISTRIBUTIONS[name][1], Fit(name, seed).load(folder)
        x = fresh(known, config.points, seed)
        if self.probes:
            fit = Probed(**vars(fit), directions=self.probes)
        return errors(known, fit, x) | {"weights": weights_error(known, fit, x, seed)}


HEAVY = [HeavyTails(low, high) for low, high in ((0.0, 0.5), (0.5, 0.9), (0.9, 0.99), (0.99, 1.0))]
KINDS = (Fit, Error, Line, Total, HeldOut, Growth, Whitened, Agreement, HeavyTails, Hutchinson, Chains)


def asked(seed: int) -> list[Cell]:
    """Return the cells that use the fits of a seed, except the spline flow."""
    each: dict[str, Any] = {"seed": [seed], "distribution": DISTRIBUTIONS}
    methods = [method for method in (*ESTIMATES, *TRUTHS) if method != "spline flow"]
    return [
        *grid(Error, path=NODES, **each),
        *grid(Line, **each),
        *grid(Total, **each),
        *grid(HeldOut, method=methods, **each),
    ]


def stages(config: Config) -> list[list[Cell]]:
    """Return the fits and the cells that use them, by seed; cells with one seed come with the first."""
    once = [
        Agreement(TOO_FEW_STEPS),
        *HEAVY,
        *grid(Hutchinson, probes=(0, config.probes)),
        *grid(Growth, dimension=config.dimensions),
    ]
    once.append(Whitened(max(config.dimensions)))
    once += grid(HeldOut, seed=config.seeds[:1], distribution=DISTRIBUTIONS, method=["spline flow"])
    once += grid(Chains, seed=config.seeds[:1], distribution=CHAINED, rule=RULES, beta=BETAS)
    found: list[list[Cell]] = []
    for seed in config.seeds:
        found += [grid(Fit, seed=[seed], distribution=DISTRIBUTIONS), asked(seed)]
    return [*found[:2], once, *found[2:]]

"""How accurate is log p from a score? Compared with known densities and with other estimates.

The distributions have a log density that is known after any Gaussian blur, mode by mode: a fit with noise levels knows
the distribution of its samples blurred by N(0, sigma^2 C), so that is what its log p is held against.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh import (
    LineIntegral,
    Point,
    ScoreFit,
    Target,
    annealing,
    datasets,
    diffusion,
    fit_score,
    targets,
)
from scoremh.coordinates import Affine
from scoremh.score_matching import LONG_RECIPE
from studies import outsiders, plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.runner import earlier
from studies.framework.tables import mean
from studies.learning import FIGURE_1, seeded

# The distributions.

ROWS = 1000  # points at once, each with its distance to all points of a curve
ARMS, RADIAL_STD, TANGENTIAL_STD, RATE = 5, 0.5, 0.05, 0.25  # of `datasets.pinwheel`


class Known(ABC):
    """A distribution that is a sum of modes.

    Args:
        sample: Function from a number and a generator to points.
    """

    def __init__(self, sample: Callable[..., Tensor]) -> None:
        self.sample = sample

    @abstractmethod
    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        """Return the log of every mode's part of the density at x, in float64, blurred by N(0, blur) if given."""

    def log_density(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, " draw"]:
        """Return log p, in float64, of the distribution blurred by N(0, blur) if given."""
        return self.components(x, blur).logsumexp(1)


class Normals(Known):
    """A mixture of normal distributions."""

    def __init__(self, mixture: targets.GaussianMixture) -> None:
        super().__init__(mixture.sample)
        self.mixture = mixture

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        of = self.mixture
        added = 0.0 if blur is None else blur.double()
        parts = zip(of.weights.double(), of.means.double(), of.covariances.double() + added, strict=True)
        columns = [targets.Gaussian(mean, cov).log_density(x.double()) + weight.log() for weight, mean, cov in parts]
        return torch.stack(columns, 1)


def near_curves(
    x: Tensor, curves: Float[Tensor, "mode point 2"], log_weights: Float[Tensor, " point"], covariance: Tensor
) -> Float[Tensor, "draw mode"]:
    """Return log sum_i w_i N(x; c_i, covariance) for every curve of points c_i."""
    root = torch.linalg.cholesky(covariance)
    whiten = torch.linalg.inv(root).T
    constant = math.log(2 * math.pi) + float(root.diagonal().log().sum())

    def part(some: Tensor, curve: Tensor) -> Tensor:
        return (log_weights - torch.cdist(some @ whiten, curve @ whiten).square() / 2).logsumexp(1) - constant

    columns = [torch.cat([part(some, curve) for some in x.double().split(ROWS)]) for curve in curves]
    return torch.stack(columns, 1)


class Moons(Known):
    """Two half circles with isotropic noise, as `datasets.moons` draws them."""

    def __init__(self, points: int = 3000) -> None:
        super().__init__(datasets.moons)
        angle = (torch.arange(points, dtype=torch.float64) + 0.5) / points * math.pi
        outer, inner = (angle.cos(), angle.sin()), (1 - angle.cos(), 0.5 - angle.sin())
        self.curves = torch.stack([torch.stack(curve, 1) for curve in (outer, inner)])
        self.log_weights = torch.full((points,), -math.log(2 * points), dtype=torch.float64)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        noise = 0.1**2 * torch.eye(2, dtype=torch.float64)
        covariance = noise if blur is None else noise + blur.double()
        return near_curves(x, self.curves, self.log_weights, covariance)


class Pinwheel(Known):
    """Five bent arms, as the paper prints them: c_k(r) + delta (1, 1), with r and delta normal."""

    def __init__(self, points: int = 3000) -> None:
        super().__init__(datasets.pinwheel)
        self.r = 1 + RADIAL_STD * torch.linspace(-6, 6, points, dtype=torch.float64)
        angles = 2 * math.pi / ARMS * torch.arange(ARMS)[:, None] + RATE * self.r
        self.curves = self.r[:, None] * torch.stack([angles.cos(), angles.sin()], 2)
        self.log_weights = log_normal(self.r - 1, RADIAL_STD) + float((self.r[1] - self.r[0]).log()) - math.log(ARMS)

    def components(self, x: Float[Tensor, "draw d"], blur: Tensor | None = None) -> Float[Tensor, "draw mode"]:
        if blur is None:
            return torch.stack([self.sharp(x.double(), curve) for curve in self.curves], 1)
        same = TANGENTIAL_STD**2 * torch.ones(2, 2, dtype=torch.float64)
        return near_curves(x, self.curves, self.log_weights, same + blur.double())

    def sharp(self, x: Tensor, curve: Float[Tensor, "point 2"]) -> Float[Tensor, " draw"]:
        """Return the log of an arm's part without blur: a sum over all (r, delta) that x can come from.

        delta (1, 1) leaves x_1 - x_2 as it is, so that r solves f(r) = c_1(r) - c_2(r) = x_1 - x_2, and the volume of
        the map from (r, delta) to x is |f'(r)|; between two points of the curve f is taken for a line.
        """
        across, slope, step = curve[:, 0] - curve[:, 1], (curve[:, 0] - curve[:, 1]).diff(), self.r.diff()
        parts = []
        for some in x.split(ROWS):
            share = (
                (some[:, :1] - some[:, 1:]) - across[:-1]
            ) / slope  # where between two points of the curve f is met
            r, delta = self.r[:-1] + share * step, some[:, :1] - (curve[:-1, 0] + share * curve[:, 0].diff())
            log_part = log_normal(r - 1, RADIAL_STD) + log_normal(delta, TANGENTIAL_STD) - (slope / step).abs().log()
            parts.append(log_part.where((share >= 0) & (share < 1), torch.tensor(-math.inf).double()).logsumexp(1))
        return torch.cat(parts) - math.log(ARMS)


def log_normal(x: Tensor, std: float) -> Tensor:
    """Return log N(x; 0, std^2)."""
    return -(x / std).square() / 2 - math.log(std * math.sqrt(2 * math.pi))


def corners(weights: list[float], variances: list[float], dimension: int) -> Normals:
    """Return modes at 5 times the first unit vectors."""
    eye, count = torch.eye(dimension), len(weights)
    covariances = torch.stack([variance * eye for variance in variances])
    return Normals(targets.GaussianMixture(weights, 5 * eye[:count], covariances))


THREE_MODES = targets.GaussianMixture(
    [0.5, 0.3, 0.2],
    [[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]],
    [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 0.5]]],
)
DISTRIBUTIONS: dict[str, tuple[str, Known]] = {
    "figure 1": ("0.8 N((5, 5), I) + 0.2 N((-5, -5), I), Figure 1", Normals(FIGURE_1)),
    "three modes": ("three modes of different shapes, 2-D", Normals(THREE_MODES)),
    "moons": ("Moons", Moons()),
    "pinwheel": ("Pinwheel as printed: arms without width", Pinwheel()),
    "ten": ("three modes of different widths, 10-D", corners([0.5, 0.3, 0.2], [1.0, 0.6, 1.5], 10)),
    "twenty": ("four modes, 20-D", corners([0.4, 0.3, 0.2, 0.1], [1.0, 1.0, 1.0, 1.0], 20)),
}


# The fits, and other estimates.

T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and fresh points
    samples: int = 10_000  # samples to learn from
    points: int = 4000  # fresh points for the error of log p
    rows: int = 5000  # fresh rows for a held-out likelihood
    draws: int = 2000  # draws of the probability flow, for normalisation beyond the plane
    cells: int = 320  # cells of a side of the grid, for normalisation in the plane


class Fit(Cell, kind="fit"):
    """A fit by the defaults to samples of a known distribution, which is kept in a file."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        x = DISTRIBUTIONS[self.distribution][1].sample(config.samples, generator=seeded(0, self.seed))
        fit, seconds = timed(lambda: fit_score(x, generator=seeded(1, self.seed)))
        fit.save(self.path(folder))
        return {"seconds": seconds}

    def path(self, folder: Path) -> Path:
        """Return the file of the fit."""
        return folder / f"{self.distribution} {self.seed}.safetensors"

    def load(self, folder: Path) -> ScoreFit:
        """Return the fit from its file."""
        return ScoreFit.load(self.path(folder))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and its CPU seconds."""
    start = time.process_time()
    return call(), time.process_time() - start


def blur(fit: ScoreFit) -> Tensor:
    """Return the covariance of the noise at the level of a fit, in the coordinates of its samples."""
    covariance, level = fit.covariance, fit.noise_level
    assert covariance is not None  # the samples are standardised,
    assert level is not None  # and the network knows levels
    return level**2 * (covariance if covariance.ndim == 2 else torch.diag(covariance)).double()


TRIAL = 200  # steps that tell how long one takes, with a look at held-out samples as in every 200


def kernel_log_density(x: Tensor, rows: Tensor) -> Tensor:
    """Return the log density of rows by a Gaussian kernel density estimate of samples, in standard coordinates."""
    from sklearn.neighbors import KernelDensity

    coordinates = Affine.whitening(x)
    u, v = coordinates.inverse(x), coordinates.inverse(rows)
    estimate = KernelDensity(bandwidth=outsiders.best_bandwidth(u)).fit(u.numpy())
    return torch.from_numpy(estimate.score_samples(v.numpy())) - coordinates.log_det(v)


def spline_log_density(x: Tensor, rows: Tensor, *, seconds: float, generator: torch.Generator) -> Tensor:
    """Return the log density of rows by a neural spline flow.

    Args:
        x: Samples to learn from.
        rows: Where to evaluate it.
        seconds: CPU seconds that the training may take.
        generator: Random number generator; the same seed gives the same weights.
    """
    coordinates = Affine.whitening(x)
    u, v = coordinates.inverse(x), coordinates.inverse(rows)
    _, once = timed(lambda: outsiders.trained_flow(u, replace(LONG_RECIPE, steps=TRIAL), generator))
    steps = max(TRIAL, round(TRIAL * seconds / once))
    fit = outsiders.trained_flow(u, replace(LONG_RECIPE, steps=steps), generator)
    with torch.no_grad():
        log_p = torch.cat([fit.net().log_prob(part) for part in v.split(1000)])
    return log_p - coordinates.log_det(v)


# The measurements.

ESTIMATES = ("through noise", "flow", "kernel", "spline flow")
TRUTHS = ("truth", "truth, blurred")
LINE = LineIntegral("gauss", nodes=64)
INNER, OUTER, COARSE = 5.0, 10.0, 80  # standard deviations of the fine grid and of the coarse one, cells of its side


def rms(x: Tensor) -> float:
    """Return the root mean square; 0 of nothing."""
    return float(x.square().mean().sqrt()) if len(x) else 0.0


def differences(error: Float[Tensor, " draw"], known: Known, x: Tensor, noise: Tensor) -> Record:
    """Return the rms of errors of differences of log p between points and random others, in two modes and in one."""
    modes = known.components(x, noise).argmax(1)
    same = modes == modes[partners(x)]
    return {"between": rms(error[~same]), "within": rms(error[same])}


def partners(x: Tensor) -> Tensor:
    """Return the number of another point for every point."""
    return torch.randperm(len(x), generator=seeded(5))


def fresh(known: Known, n: int, seed: int) -> Tensor:
    """Return points that no fit has seen."""
    return known.sample(n, generator=seeded(2, seed))


class Error(Cell, kind="error"):
    """The error of log p through noise, against the truth at the level of the fit."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        x = fresh(known, config.points, self.seed)
        with torch.inference_mode():
            error = diffusion.log_density(fit, x).double() - known.log_density(x, blur(fit))
        return differences(error - error[partners(x)], known, x, blur(fit))


class Line(Cell, kind="line"):
    """The error of the same fit's line integrals between the same pairs of points."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        x = fresh(known, config.points, self.seed)
        other, target = partners(x), Target(fit.score)
        current, proposed = (Point.at(some, target, frozenset({"score"})) for some in (x[other], x))
        with torch.inference_mode():
            change = LINE.log_density_change(current, proposed, target=target).double()
        true = known.log_density(x, blur(fit))
        return differences(change - (true - true[other]), known, x, blur(fit))


class Total(Cell, kind="total"):
    """The integral of exp(log p), the weights of modes by it, and its difference to the probability flow's log p."""

    distribution: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        with torch.inference_mode():
            plane = fit.support.low.numel() == 2
            total = total_on_grid(fit, config.cells) if plane else total_of_draws(fit, config.draws, self.seed)
            return {
                "total": total,
                "weights": weights_error(known, fit, fresh(known, config.points, self.seed), self.seed),
            }


def total_of_draws(fit: ScoreFit, n: int, seed: int) -> float:
    """Return the mean of p through noise over p of the probability flow, at the flow's draws."""
    low, high = diffusion.noise_span(fit)
    standard, size = fit.standard, fit.support.low.numel()
    noise = math.sqrt(1 + high**2) * torch.randn(n, size, generator=seeded(10, seed))
    draws = annealing.flow(standard.at, annealing.flow_levels(high, low), noise)
    through, flow = diffusion.log_density(standard, draws), diffusion.flow_log_density(standard, draws)
    return float((through.double() - flow.double()).exp().mean())


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
            log_p = kernel_log_density(x, rows)
        elif self.method == "spline flow":
            allowed = earlier(Fit(self.distribution, self.seed), folder)["seconds"]
            log_p = spline_log_density(x, rows, seconds=allowed, generator=seeded(12, self.seed))
        else:
            log_p = known.log_density(rows, blur(fit) if self.method == TRUTHS[1] else None)
        return {"value": float(log_p.double().mean()), **more}


def stages(config: Config) -> list[list[Cell]]:
    """Return the fits and the cells that use them, by seed; cells with one seed come with the first."""
    found: list[list[Cell]] = []
    for seed in config.seeds:
        first = seed == config.seeds[0]
        methods = [name for name in (*ESTIMATES, *TRUTHS) if first or name != "spline flow"]
        each: dict[str, Any] = {"seed": [seed], "distribution": DISTRIBUTIONS}
        cells = [
            *grid(Error, **each),
            *grid(Line, **each),
            *grid(Total, **each),
            *grid(HeldOut, method=methods, **each),
        ]
        found += [grid(Fit, **each), cells]
    return found


# The page.

MAX_BETWEEN = dict(zip(DISTRIBUTIONS, (0.15, 0.2, 0.35, 0.7, 0.9, 0.7), strict=True))  # nats
MAX_EXCESS = 0.1  # of the integral of exp(log p) over 1
DEPTH = 12.0  # nats below the maximum that a picture shows
SIDE = 200  # pixels of a side of a panel


def accurate(records: Records) -> dict[str, bool]:
    """Return on which distributions the error between modes, by the default path, is within its bound."""
    return {
        DISTRIBUTIONS[name][0]: mean(records.values("error", "between", distribution=name)) <= bound
        for name, bound in MAX_BETWEEN.items()
    }


def normalised(records: Records) -> dict[str, bool]:
    """Return on which distributions the integral of exp(log p) is within 10 % of 1, in the mean over seeds."""
    totals = {name: mean(records.values("total", "total", distribution=name)) for name in DISTRIBUTIONS}
    return {DISTRIBUTIONS[name][0]: abs(total - 1) <= MAX_EXCESS for name, total in totals.items()}


def below_truth(records: Records, distribution: str, method: str) -> float:
    """Return by how many nats a row a method's held-out likelihood is below the truth's, over the method's seeds."""
    truth = {one["seed"]: one["value"] for one in records.where("held_out", distribution=distribution, method="truth")}
    there = records.where("held_out", distribution=distribution, method=method)
    return mean([truth[one["seed"]] - one["value"] for one in there])


def likelihoods(records: Records, distribution: str) -> list[str]:
    """Return the entries of a row of the table: how far every estimate is below the truth, the nearest in bold."""
    found = [below_truth(records, distribution, method) for method in ESTIMATES]
    return [f"**{value:.3f}**" if value == min(found) else f"{value:.3f}" for value in found]


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw log p below its maximum on Moons and Pinwheel, in truth and through noise."""
    panels: dict[str, Tensor] = {}
    extents: dict[str, tuple[float, ...]] = {}
    for name in ("moons", "pinwheel"):
        known, fit = DISTRIBUTIONS[name][1], Fit(name, records.settings["seeds"][0]).load(folder)
        (left, bottom), (right, top) = fit.support.low.tolist(), fit.support.high.tolist()
        points = torch.cartesian_prod(torch.linspace(left, right, SIDE), torch.linspace(bottom, top, SIDE))
        true = known.log_density(points, blur(fit))
        with torch.inference_mode():
            estimate = diffusion.log_density(fit, points).double()
        for what, values in {"truth, blurred as the fit": true, "through noise": estimate}.items():
            head = f"{name.capitalize()}: {what}"
            panels[head], extents[head] = (values - true.max()).reshape(SIDE, SIDE).T, (left, right, bottom, top)
    scale, label = (-DEPTH, 0.0), "nats below the true maximum"
    path = docs / "densities_planes.png"
    plots.map_panels(panels, path, extents=extents, scale=scale, label=label, columns=2)


STUDY = Study(
    "densities",
    "what log p from a score is worth, against known densities and beside other estimates",
    Config(),
    stages,
    picture,
    globals(),
    {
        "accurate": Claim("log p has the weights of modes within its bounds", accurate),
        "normalised": Claim("exp(log p) integrates to 1 within 10 %", normalised),
    },
    page="densities.md",
)

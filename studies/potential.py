"""A score that is a gradient by construction, and the default: at equal time, against exact blurred scores."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scoremh import Recipe, Sampler, ScoreFit, fit_score, metrics, targets
from scoremh.networks import NoiseConditionalPotential
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import mean
from studies.learning import FIGURE_1
from studies.sweeps.ratios import moons

DIAGONALS = torch.tensor([[1.0, 1.0], [0.5, 2.0], [2.0, 0.5]])
LAWS: dict[str, tuple[str, targets.GaussianMixture]] = {
    "mixture": ("Figure 1's mixture", FIGURE_1),
    "three": (
        "three modes, 2-D",
        targets.GaussianMixture([0.5, 0.3, 0.2], [[-4.0, 0.0], [4.0, 0.0], [0.0, 6.0]], DIAGONALS.diag_embed()),
    ),
    "moons": ("Moons", moons()),
    "ten": (
        "three modes, 10-D",
        targets.GaussianMixture(
            [0.5, 0.3, 0.2], 5 * torch.eye(10)[:3], torch.tensor([1.0, 0.6, 1.5])[:, None, None] * torch.eye(10)
        ),
    ),
}
NETS: dict[str, str | None] = {"default": None, "potential": "potential"}
MAX_MODES = 10  # components beyond which a mixture stands for two curves
ERRORS = {
    "score_error": "score error",
    "common_score_error": "score error at the common level",
    "through_noise": "log p between modes",
    "chains": "W1 of chains",
}
MAX_LOSS = 1.1  # of errors, where the potential is to be taken for the default


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (11, 12)
    sizes: tuple[int, ...] = (500, 2000, 10_000)  # samples to learn from
    steps: int = 4000  # of the default; those of the potential are as many as take the same time
    potential_cost: float = 1.75  # CPU time of a step with its share of the checks, that of the default being 1
    fresh: int = 4000  # draws for the errors
    chains: int = 2000  # draws of `Sampler`, and of the distribution, between which W1 is taken
    chain_steps: int = 300  # of tuning and of the chains
    common_level: float = 0.1  # noise level at which both are judged besides their own, in units of the spread


PRESETS = {"paper": Config()}


class Learned(Cell, kind="learned"):
    """A fit to samples of a distribution that is known blurred, too."""

    law: str
    size: int
    net: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        law = LAWS[self.law][1]
        draws = [torch.Generator().manual_seed(10 * self.seed + use) for use in range(4)]
        steps = config.steps if self.net == "default" else round(config.steps / config.potential_cost)
        samples = law.sample(self.size, generator=draws[0]).float()
        began = time.process_time()
        fit = fit_score(samples, net=NETS[self.net], recipe=Recipe(steps), generator=draws[1])
        seconds = time.process_time() - began
        found = {"seconds": seconds, "steps": fit.history["step"][-1], "level": fit.noise_level}
        x = law.sample(config.fresh, generator=draws[2]).float()
        assert fit.noise_level is not None
        own, common = (judged(fit, law, x, level) for level in (fit.noise_level, config.common_level))
        found |= own | {f"common_{key}": value for key, value in common.items()}
        return found | {"chains": chains_w1(fit, law, config, draws[3])}


def chains_w1(fit: ScoreFit, law: targets.GaussianMixture, config: Config, draws: torch.Generator) -> float:
    """Return W1 between the draws of `Sampler` and fresh ones, in units of the spread, over that of fresh ones."""
    n, steps = config.chains, config.chain_steps
    sampler = Sampler(fit).tune(n // 4, steps=steps, generator=draws)
    found = sampler.sample(n, chain_steps=steps, generator=draws).last
    fresh, others = (law.sample(n, generator=draws).to(found) for _ in range(2))
    one, two, three = (x / fresh.std(0) for x in (found, fresh, others))
    return metrics.w1(one, two) / metrics.w1(three, two)


@torch.no_grad()
def judged(fit: ScoreFit, law: targets.GaussianMixture, x: Tensor, level: float) -> Record:
    """Return the errors of a fit at a noise level: of the score, and of log p between modes."""
    model = fit.at(level).levels
    assert isinstance(model, ScoreFit)
    assert model.log_density is not None
    covariance = fit.covariance
    assert covariance is not None
    noise = level**2 * (covariance if covariance.ndim == 2 else covariance.diag()).to(law.covariances)
    blurred = targets.GaussianMixture(law.weights, law.means, law.covariances + noise)
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    y = x + z @ torch.linalg.cholesky(noise).mT.to(x)
    true = blurred.score(y)
    truth, modes = blurred.log_density(y), mode(law, y)
    found = {"score_error": float((model.score(y) - true).square().sum() / true.square().sum())}
    found["through_noise"] = between_modes(model.log_density(y) - truth, modes)
    with_potential = isinstance(fit.standard.net, NoiseConditionalPotential)
    return found | ({"potential": between_modes(model.potential(y) - truth, modes)} if with_potential else {})


def mode(law: targets.GaussianMixture, y: Tensor) -> Tensor:
    """Return the mode of every point: the nearest mean, or the half of them where there are many."""
    nearest = torch.cdist(y, law.means.to(y)).argmin(1)
    return nearest if len(law.means) <= MAX_MODES else (2 * nearest) // len(law.means)


def between_modes(error: Tensor, modes: Tensor) -> float:
    """Return the rms error of differences of log p between points of different modes."""
    order = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))
    apart = modes != modes[order]
    return math.sqrt(float((error - error[order])[apart].square().mean()))


def stages(config: Config) -> list[list[Cell]]:
    """Return all fits."""
    return [[*grid(Learned, seed=config.seeds, law=LAWS, size=config.sizes, net=NETS)]]


def ratio(records: Records, key: str, law: str, size: int) -> float:
    """Return an error of the potential over that of the default, in the mean over seeds."""
    mine, theirs = (
        mean(records.values("learned", key, law=law, size=size, net=net)) for net in ("potential", "default")
    )
    return mine / theirs


def ratios(records: Records, key: str) -> list[float]:
    """Return all such ratios."""
    return [ratio(records, key, law, size) for law in LAWS for size in records.settings["sizes"]]


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(mean([math.log(value) for value in values]))


def better(records: Records) -> dict[str, bool]:
    """Return by which errors the potential is better in the mean and nowhere more than 10 % worse."""
    found = {name: ratios(records, key) for key, name in ERRORS.items()}
    return {name: geometric_mean(each) < 1 and max(each) <= MAX_LOSS for name, each in found.items()}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the error of scores over the number of samples."""
    sizes = records.settings["sizes"]
    panels: dict[str, dict[str, plots.Curve]] = {
        name: {
            net: (
                sizes,
                [mean(records.values("learned", "score_error", law=law, size=size, net=net)) for size in sizes],
            )
            for net in NETS
        }
        for law, (name, _) in LAWS.items()
    }
    plots.curve_panels(
        panels,
        docs / "potential-score.png",
        labels=("samples", "relative error of the score"),
        log=True,
        columns=2,
        title="A gradient by construction, and the default, at equal time",
    )


STUDY = Study(
    "potential-score",
    "a score that is a gradient by construction beside the default, at equal time",
    PRESETS,
    stages,
    (Learned,),
    picture,
    globals(),
    {"better": Claim("a potential is better in the mean and nowhere more than 10 % worse", better)},
    page="potential-score.md",
)

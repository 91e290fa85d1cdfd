"""Which sampler of images? Each from noise, at its own setting and at about equal score calls."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import Always, LineIntegral, ScoreFit, anneal, annealing, diagnostics, hamiltonian, metropolis_hastings
from scoremh.acceptance import Rule
from scoremh.proposals import ScaledMALA
from scoremh.types import Kernel
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid, runner
from studies.framework.tables import markdown, mean, number, number_and_spread
from studies.mnist import sampling
from studies.mnist.judging import DISTANCES, Floor, judged
from studies.mnist.sampling import HIGH, LOW, kept_score, reverse_step

SHOWN = 16  # images of a panel
Found = tuple[Tensor, float]
"""Images with the noise of the last level, and score calls per chain."""
ULA_TAU = 0.5  # of the unadjusted steps of the gated sampler


class Choice(NamedTuple):
    """A setting: its value, and the number of noise levels over that of a sampler with three score calls a level."""

    value: float
    levels: float = 1.0


class Start(NamedTuple):
    """Where a sampler starts: a score, noise of the highest level, a number of noise levels, random numbers."""

    model: ScoreFit
    noise: Tensor
    levels: int
    draws: torch.Generator

    def geometric(self) -> list[float]:
        """Return the noise levels, from high to low."""
        return annealing.geometric(HIGH, LOW, self.levels)

    def annealed(
        self, kernel_at: Callable[[float], Kernel], steps: int = 1, levels: list[float] | None = None
    ) -> Found:
        """Return images by annealing with steps of some kernel at every level, or at some of them."""
        found = anneal(
            kernel_at,
            self.geometric() if levels is None else levels,
            self.noise,
            steps_per_level=steps,
            measure_noise=False,
            generator=self.draws,
        )
        return found.draws, found.score_calls / len(self.noise)

    def langevin(self, level: float, tau: float, rule: Rule) -> Kernel:
        """Return the kernel of annealed chains at a level."""
        return metropolis_hastings(self.model.at(level), ScaledMALA(tau), rule)


def ula(start: Start, tau: float) -> Found:
    """Two steps of ULA a level."""
    return start.annealed(lambda level: start.langevin(level, tau, Always()), steps=2)


def simpson(start: Start, tau: float) -> Found:
    """A step of MALA with Simpson's rule a level."""
    return start.annealed(lambda level: start.langevin(level, tau, LineIntegral("simpson")))


def exact(start: Start, tau: float) -> Found:
    """A step of MALA with the exact rule a level."""
    return start.annealed(lambda level: start.langevin(level, tau, LineIntegral("exact")))


def gated(start: Start, gate: float) -> Found:
    """MALA with Simpson's rule above a noise level, ULA below it."""
    above = [level for level in start.geometric() if level >= gate]
    below = start.geometric()[len(above) :]
    x, calls = start.annealed(lambda level: start.langevin(level, ULA_TAU, LineIntegral("simpson")), levels=above)
    rest = start._replace(noise=x)
    x, more = rest.annealed(lambda level: start.langevin(level, ULA_TAU, Always()), steps=2, levels=below)
    return x, calls + more


def leaping(start: Start, leap: float) -> Found:
    """A Hamiltonian move of two leapfrog steps a level, each of so many noise levels."""
    return start.annealed(lambda level: hamiltonian(start.model.at(level), leap * level, 2, LineIntegral("simpson")))


def flow(start: Start, _: float) -> Found:
    """The probability flow, four calls a step, with as many calls as two a level."""
    levels = annealing.karras(HIGH, LOW, 1 + start.levels // 2)
    return annealing.flow(start.model.at, levels, start.noise), 4.0 * (len(levels) - 1)


def predictor(start: Start, _: float) -> Found:
    """Steps of the reverse diffusion, one call each."""
    x, levels = start.noise, start.geometric()
    for high, low in itertools.pairwise(levels):
        x = reverse_step(start.model, x, high, low, start.draws)
    return x, float(len(levels) - 1)


def corrected(start: Start, tau: float, rule: Rule | None = None) -> Found:
    """Steps of the reverse diffusion, each with a Langevin step after it; unadjusted without a rule."""
    x, levels = start.noise, start.geometric()
    corrector = annealing.Corrector(start.model, lambda _: ScaledMALA(tau), rule or Always())
    for high, low in itertools.pairwise(levels):
        x = corrector(reverse_step(start.model, x, high, low, start.draws), low, generator=start.draws)
    return x, (3.0 if rule is None else 4.0) * (len(levels) - 1)


def corrected_simpson(start: Start, tau: float) -> Found:
    """The same with an accept step by Simpson's rule."""
    return corrected(start, tau, LineIntegral("simpson"))


class Sampler(NamedTuple):
    """A sampler by its name, how it draws, and the settings that are tried."""

    label: str  # with a place for the value that was chosen
    draw: Callable[[Start, float], Found]
    choices: tuple[Choice, ...]


def settings(*values: float, levels: float = 1.0) -> tuple[Choice, ...]:
    """Return choices with the same number of levels."""
    return tuple(Choice(value, levels) for value in values)


SAMPLERS = {
    "ula": Sampler("ULA, tau {:g}", ula, settings(0.3, 0.4, 0.5, 0.6)),
    "simpson": Sampler("MALA, Simpson, tau {:g}", simpson, settings(0.4, 0.5, 0.6, 0.7)),
    "exact": Sampler("MALA, exact rule, tau {:g}", exact, settings(0.5, 0.6, 0.7, levels=0.42)),
    "gated": Sampler("MALA above noise {:g}, ULA below", gated, settings(0.1, 0.3, 1.0)),
    "hamiltonian": Sampler("Hamiltonian, Simpson, step {:g}", leaping, settings(0.5, 0.7, 0.9, levels=0.6)),
    "flow": Sampler("probability flow", flow, settings(0.0, levels=1.5)),
    "predictor": Sampler("reverse diffusion", predictor, settings(0.0, levels=3.0)),
    "corrected": Sampler("reverse diffusion and ULA, tau {:g}", corrected, settings(0.1, 0.2, 0.3)),
    "corrected_simpson": Sampler(
        "reverse diffusion and MALA, tau {:g}", corrected_simpson, settings(0.1, 0.2, 0.3, levels=0.75)
    ),
}


TAU = 0.7
LAG = math.sqrt(1 + TAU**2)  # noise that annealed chains carry, over that of their level
IMAGES = 100
LEVELS = tuple(round(level, 3) for level in annealing.geometric(HIGH, LOW, 7))


class AtLevel(Cell, kind="level"):
    """Real images with the noise that annealed chains carry at a level, and a candidate for each."""

    level: float

    def measure(self, config: object, folder: Path) -> Record:
        torch.set_num_threads(1)
        model, real = kept_score(), sampling.reference(IMAGES, 1)
        generator = torch.Generator().manual_seed(1)
        curl = diagnostics.conservativity_by_level(
            model.at, [self.level], real, step=2 * TAU / LAG, nodes=4, generator=generator
        )[self.level]
        x = real + LAG * self.level * torch.randn(real.shape, generator=generator)
        how: dict[str, Any] = {"target": model.at(self.level), "proposal": ScaledMALA(TAU), "x": x}
        rules, draws = (LineIntegral("simpson"), LineIntegral("gauss", nodes=16)), torch.Generator().manual_seed(2)
        found = diagnostics.disagreement(*rules, generator=draws, **how)
        return {"circulation": curl.circulation, "disagreement": found.rate}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (2, 3)
    n: int = 500  # images
    trial_seed: int = 12  # of the images that settings are chosen by
    trial_n: int = 100
    levels: int = 100  # of a sampler that costs three calls a level; others have more or fewer


def images_of(sampler: str, choice: Choice, n: int, seed: int, config: Config) -> tuple[Tensor, Record]:
    """Return images by a sampler with a setting, without their last noise, and what they cost."""
    torch.set_num_threads(1)
    model, draws = kept_score(), torch.Generator().manual_seed(seed)
    began, noise = time.process_time(), HIGH * torch.randn(n, 1, 28, 28, generator=draws)
    x, calls = SAMPLERS[sampler].draw(Start(model, noise, round(choice.levels * config.levels), draws), choice.value)
    with torch.inference_mode():
        images = (x + LOW**2 * model.net(x, LOW)).contiguous().clone()
    return images, {"calls": calls, "cpu_seconds": time.process_time() - began}


class Tried(Cell, kind="tried"):
    """A setting of a sampler, by few images of another seed."""

    sampler: str
    value: float

    def measure(self, config: Config, folder: Path) -> Record:
        choice = next(one for one in SAMPLERS[self.sampler].choices if one.value == self.value)
        images, cost = images_of(self.sampler, choice, config.trial_n, config.trial_seed, config)
        return judged(images, sampling.reference(config.trial_n, config.trial_seed)) | cost


def chosen_setting(sampler: str, folder: Path) -> Choice:
    """Return the setting of a sampler with the least Frechet distance in the trials."""
    choices = SAMPLERS[sampler].choices
    if len(choices) == 1:
        return choices[0]
    found = {choice: runner.earlier(Tried(sampler, choice.value), folder)["frechet"] for choice in choices}
    return min(found, key=lambda choice: math.inf if found[choice] is None else found[choice])


class Drawn(Cell, kind="drawn"):
    """Images by a sampler."""

    sampler: str
    seed: int

    def file(self, folder: Path) -> Path:
        """Return the file of the images."""
        return sampling.image_file(folder, self.sampler, self.seed)

    def measure(self, config: Config, folder: Path) -> Record:
        choice = chosen_setting(self.sampler, folder)
        images, cost = images_of(self.sampler, choice, config.n, self.seed, config)
        save_file({"images": images}, self.file(folder))
        return judged(images, sampling.reference(config.n, self.seed)) | {"value": choice.value} | cost


def stages(config: Config) -> list[list[Cell]]:
    """Return what real images have and the settings that are tried, then all samplers."""
    first = [*grid(Floor, n=(config.n,)), *grid(AtLevel, level=LEVELS)]
    tried: list[Cell] = [
        Tried(name, choice.value)
        for name, sampler in SAMPLERS.items()
        for choice in sampler.choices
        if len(sampler.choices) > 1
    ]
    return [[*first, *tried], grid(Drawn, seed=config.seeds, sampler=SAMPLERS)]


def label(records: Records, sampler: str) -> str:
    """Return the name of a sampler with the setting that was chosen."""
    return SAMPLERS[sampler].label.format(records.where("drawn", sampler=sampler)[0]["value"])


def shown(records: Records) -> list[str]:
    """Return the samplers that were computed."""
    return [name for name in SAMPLERS if records.where("drawn", sampler=name)]


def table(records: Records) -> str:
    """Return both distances of every sampler, with those of real images in the first row."""
    rows = {"real images": {name: number(records.kinds["floor"][0][key]) for key, name in DISTANCES.items()}}
    for sampler in shown(records):
        rows[label(records, sampler)] = {
            name: number_and_spread(records.values("drawn", key, sampler=sampler)) for key, name in DISTANCES.items()
        }
    return markdown(pd.DataFrame(rows).T, "sampler")


def best(records: Records, key: str) -> str:
    """Return the label of the sampler with the least distance, in the mean over seeds."""
    return label(records, min(shown(records), key=lambda sampler: mean(records.values("drawn", key, sampler=sampler))))


def accept_step_helps(records: Records) -> dict[str, bool]:
    """Return, by distance, whether the reverse diffusion is nearer with MALA's steps than with ULA's."""
    both = ("corrected_simpson", "corrected")
    found = {key: [mean(records.values("drawn", key, sampler=name)) for name in both] for key in DISTANCES}
    return {DISTANCES[key]: with_step < without for key, (with_step, without) in found.items()}


def beside(records: Records, key: str) -> str:
    """Return a distance of the reverse diffusion with MALA's steps beside that with ULA's."""
    both = (
        number_and_spread(records.values("drawn", key, sampler=name)) for name in ("corrected_simpson", "corrected")
    )
    return " beside ".join(both)


def ladder(dimension: int = 784, rate: float = 0.2) -> int:
    """Return how many levels replica exchange would need for its neighbours to swap at a rate, by noise alone.

    Between N(0, s^2 I) and N(0, (1 + e)^2 s^2 I) the log ratio of a swap is nearly normal with mean -m and variance 2m,
    m = 2 e^2 d, so that swaps are accepted at the rate 2 Phi(-sqrt(m / 2)).
    """
    gap = -NormalDist().inv_cdf(rate / 2) / math.sqrt(dimension)
    return 1 + math.ceil(math.log(HIGH / LOW) / gap)


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw images of every sampler, and real ones."""
    cells = [Drawn.of(record) for record in records.kinds["drawn"] if record["seed"] == records.settings["seeds"][0]]
    panels = {label(records, cell.sampler): load_file(cell.file(folder))["images"][:SHOWN] for cell in cells}
    panels["real"] = sampling.reference(SHOWN, 0)
    plots.image_panels(panels, docs / "mnist-panel.png", columns=3)


STUDY = Study(
    "mnist-panel",
    "MNIST: which sampler, at equal score calls",
    {"paper": Config()},
    stages,
    (Floor, AtLevel, Tried, Drawn),
    picture,
    globals(),
    {"accept": Claim("an accept step makes the best images better", accept_step_helps)},
    page="images.md",
    partial=True,
    shows_draws=True,
)

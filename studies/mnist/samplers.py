"""The samplers of images that are compared, each from noise to the lowest noise level, at about equal score calls."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh import Always, LineIntegral, ScoreFit, anneal, annealing, hamiltonian, metropolis_hastings
from scoremh.acceptance import Rule
from scoremh.proposals import ScaledMALA
from scoremh.types import Kernel
from studies.mnist.sampling import HIGH, LOW, reverse_step

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

"""Products of two models in the plane: with learned scores beside other samplers, and normal ones that are refused."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import ot
import torch
from torch import Tensor

from scoremh import (
    MALA,
    Always,
    MultilevelDenoising,
    Recipe,
    ScoreFit,
    anneal,
    annealing,
    fit_score,
    hamiltonian,
    metropolis_hastings,
    smc,
    targets,
)
from scoremh.acceptance import LineIntegral
from scoremh.annealing.anneal import reverse_diffusion
from scoremh.targets import Product
from scoremh.types import Kernel, Target
from studies.framework import Cell, Record
from studies.posteriors.cells import Config
from studies.posteriors.problems import known_model

RADIUS, WIDTH, HALF, HEIGHT = 0.5, 0.03, 0.2, 1.0  # of the ring of eight and its modes; of the bar
HIGH, LOW = 3.0, 0.01  # noise levels
SAMPLES, DRAWS = 20_000, 2000
RECIPE: Recipe | None = None  # the default
STEPS = {"ula": 0.1, "hmc": 0.3, "mh": 0.1}  # in units of the level or its square; not tuned
LEVELS, STEPS_PER_LEVEL = 40, 10
FLOORS = 5  # samples of exact draws, over which W2 is averaged
SAMPLERS = {
    "smc": "`smc`",
    "smc ula": "the same, all moves accepted",
    "anneal": "annealed MALA, with an accept step",
    "ula": "annealed MALA, all accepted (ULA)",
    "hmc": "annealed Hamiltonian moves, all accepted",
    "reverse": "reverse diffusion along summed scores",
    "exact": "exact draws",
}


def ring(n: int, g: torch.Generator) -> Tensor:
    """Draw from the ring of eight."""
    angle = torch.randint(8, (n,), generator=g) * math.pi / 4
    return RADIUS * torch.stack([angle.cos(), angle.sin()], 1) + WIDTH * torch.randn(n, 2, generator=g)


def bar(n: int, g: torch.Generator) -> Tensor:
    """Draw from the bar."""
    return (2 * torch.rand(n, 2, generator=g) - 1) * torch.tensor([HALF, HEIGHT])


def inside(x: Tensor) -> Tensor:
    """Return whether points are in the bar."""
    return (x[:, 0].abs() <= HALF) & (x[:, 1].abs() <= HEIGHT)


def both(n: int, g: torch.Generator) -> Tensor:
    """Draw from the product by rejection."""
    x = ring(8 * n, g)
    return x[inside(x)][:n]


def log_ring(x: Tensor) -> Tensor:
    """Return the log density of the ring of eight, which is that of the product within the bar but for a constant."""
    angle = torch.arange(8) * math.pi / 4
    modes = RADIUS * torch.stack([angle.cos(), angle.sin()], 1)
    squares = (x[:, None] - modes).square().sum(-1) / WIDTH**2
    return (-squares / 2).logsumexp(1) - math.log(8 * 2 * math.pi * WIDTH**2)


def prepare(config: Config, folder: Path) -> None:
    """Learn both scores, once for every seed."""
    for seed in config.seeds:
        for name, draw in {"ring": ring, "bar": bar}.items():
            path = folder / f"{name}-{seed}.safetensors"
            if not path.exists():
                g = torch.Generator().manual_seed(seed)
                loss = MultilevelDenoising(LOW, HIGH)
                fit_score(draw(SAMPLES, g), loss, standardize=False, recipe=RECIPE, generator=g).save(path)


class Composed(Cell, kind="composed"):
    """A ring times a bar, from two learned scores."""

    sampler: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        g = torch.Generator().manual_seed(100 + self.seed)
        exact = [both(DRAWS, g) for _ in range(FLOORS)]
        if self.sampler == "exact":
            return self.judged(both(DRAWS, g), exact)
        models = [ScoreFit.load(folder / f"{name}-{self.seed}.safetensors") for name in ("ring", "bar")]
        start = time.process_time()
        draws, calls = drawn(self.sampler, targets.product(*models), g)
        return self.judged(draws, exact) | {"calls": calls, "seconds": time.process_time() - start}

    def judged(self, x: Tensor, exact: list[Tensor]) -> Record:
        """Return share within the bar, mean log density within the ring, and W2."""
        costs = [ot.dist(x.double().numpy(), y.double().numpy()) for y in exact]
        distance = sum(math.sqrt(ot.emd2([], [], cost, numItermax=1_000_000)) for cost in costs) / FLOORS
        return {
            "inside": float(inside(x).float().mean()),
            "log_density": float(log_ring(x.float()).mean()),
            "w2": distance,
        }


def drawn(sampler: str, product: Target | Product, g: torch.Generator) -> tuple[Tensor, float]:
    """Return draws of a sampler and its score calls per draw."""
    at = product.at
    kernels: dict[str, Callable[[float], Kernel]] = {
        "ula": lambda level: metropolis_hastings(at(level), MALA(STEPS["ula"] * level**2), Always()),
        "anneal": lambda level: metropolis_hastings(at(level), MALA(STEPS["mh"] * level**2), LineIntegral()),
        "hmc": lambda level: hamiltonian(at(level), STEPS["hmc"] * level, 5, Always()),
    }
    if sampler.startswith("smc"):
        found = smc(product, particles=DRAWS, generator=g)
        if sampler == "smc ula":
            found = smc(
                product,
                particles=DRAWS,
                levels=found.levels[:-1],
                kernel_at=lambda level: kernels["ula"](level or LOW),
                generator=g,
            )
        return found.draws, found.score_calls / DRAWS
    x = HIGH / math.sqrt(2) * torch.randn(DRAWS, 2, generator=g)  # two normal distributions of the same width
    if sampler == "reverse":
        return reverse_diffusion(at, HIGH, LOW, x, generator=g), 2 * math.ceil(math.log(HIGH / LOW) / math.log(1.15))
    levels = annealing.geometric(HIGH, LOW, LEVELS)
    chains = anneal(kernels[sampler], levels, x, steps_per_level=STEPS_PER_LEVEL, measure_noise=False, generator=g)
    return chains.draws, chains.score_calls / DRAWS


PART = 2.5  # variance of both parts of a quotient
BASES = (20.0, 10.0, 1.1, 1.0)  # variance of the base that they are divided by


class Quotient(Cell, kind="quotient"):
    """The normal product a_1 a_2 / base, whose precision is 2 / 2.5 - 1 / base: its variance, or why it is refused."""

    base: float

    def measure(self, config: Config, folder: Path) -> Record:
        g = torch.Generator().manual_seed(0)
        parts = [targets.Gaussian(torch.tensor([m, 0.0]).double(), PART * torch.eye(2).double()) for m in (-1.0, 1.0)]
        base = targets.Gaussian(torch.zeros(2).double(), self.base * torch.eye(2).double())
        models = [known_model(law, g) for law in (*parts, base)]
        precision = 2 / PART - 1 / self.base
        try:
            found = smc(targets.product(*models, weights=[1.0, 1.0, -1.0]), particles=2000, generator=g)
        except ValueError as error:
            return {"precision": precision, "refused": str(error)}
        return {"precision": precision, "variance": float(found.draws.var(0).mean())}

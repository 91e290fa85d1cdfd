"""One kind of object: whatever knows the scores of all noise levels serves everything that walks along them."""

from functools import cache

import pytest
import torch
from torch import Tensor

from scoremh import (
    MALA,
    PCN,
    LineIntegral,
    Recipe,
    Sampler,
    ThroughNoise,
    anneal,
    annealing,
    diffusion,
    fit_score,
    metropolis_hastings,
    replica_exchange,
    sample,
    targets,
)
from scoremh.types import Kernel, ScoreModel
from tests.cases import f64
from tests.diffusion_cases import networks_of

# two modes off the origin, of weights .7 and .3: the model's mean and variance both matter
MIXTURE = targets.GaussianMixture(f64(0.7, 0.3), f64([3.0, 1.0], [-1.0, 1.0]), 0.25 * torch.eye(2).double())
EXACT = ["mixture", "diffusion"]  # a fit of 50 steps is not
KINDS = [*EXACT, "fit"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def model(kind: str) -> ScoreModel:
    if kind == "mixture":
        return MIXTURE
    if kind == "diffusion":
        settings = {
            "mean": MIXTURE.event,
            "variance": MIXTURE.variance,
            "like": MIXTURE.sample(100, generator=seeded()),
        }
        return diffusion.from_denoiser(networks_of(MIXTURE)["denoiser"], MIXTURE.noise_range, **settings)  # type: ignore[arg-type]
    return fit_score(MIXTURE.sample(500, generator=seeded()), recipe=Recipe(steps=50), generator=seeded())


def kernel_at(kind: str, level: float) -> Kernel:
    return metropolis_hastings(model(kind).standard.at(level), MALA(0.3 * level**2), LineIntegral())


def broad(kind: str, level: float, chains: int) -> Tensor:
    return Sampler(model(kind)).start(chains, noise_level=level, generator=seeded(1))


def in_data_coordinates(kind: str, u: Tensor) -> Tensor:
    return model(kind).coordinates(u)  # type: ignore[no-any-return]


def annealed(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, 0.3, 10)
    start = broad(kind, 5.0, chains)
    u = anneal(lambda level: kernel_at(kind, level), levels, start, steps_per_level=steps, generator=seeded(2)).draws
    return in_data_coordinates(kind, u)


def flowed(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, model(kind).noise_range[0], 4 * steps)  # type: ignore[index]
    start = broad(kind, 5.0, chains)
    return in_data_coordinates(kind, annealing.flow(model(kind).standard.at, levels, start))


def sampled(kind: str, chains: int, steps: int) -> Tensor:
    sampler = Sampler(model(kind), noise_level=0.5, step_size=0.1)
    return sampler.sample(chains, annealing_steps=steps, chain_steps=2 * steps, generator=seeded(2)).last


def judged_through_noise(kind: str, chains: int, steps: int) -> Tensor:
    own, u = model(kind).standard, broad(kind, 0.5, chains)
    proposal = PCN(1.0, scale=(own.variance + 0.5**2) ** 0.5)
    kernel = metropolis_hastings(own.at(0.5), proposal, ThroughNoise())
    return in_data_coordinates(kind, sample(kernel, u, draws=1, thin=4 * steps, generator=seeded(2)).last)


def exchanged(kind: str, chains: int, steps: int) -> Tensor:
    levels = annealing.geometric(5.0, 0.3, 5)
    start = broad(kind, 5.0, chains)
    parts = {"model": model(kind).standard, "draws": 2, "warmup": 2 * steps, "generator": seeded(2)}
    found = replica_exchange(lambda level: kernel_at(kind, level), levels, start, **parts)  # type: ignore[arg-type]
    return in_data_coordinates(kind, found.draws[:, -1])


WALKS = {
    "anneal": annealed,
    "flow": flowed,
    "Sampler": sampled,
    "ThroughNoise": judged_through_noise,
    "replica_exchange": exchanged,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_score_model(kind: str) -> None:
    found = model(kind)
    assert isinstance(found, ScoreModel)
    assert found.event is not None
    assert found.event.shape == found.standard.event.shape == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_walk_serves_every_kind(kind: str, walk: str) -> None:
    x = WALKS[walk](kind, 20, 2)
    assert x.shape == (20, 2)
    assert bool(x.isfinite().all())


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("kind", EXACT)
def test_exact_models_give_the_weight_of_the_modes(kind: str, walk: str) -> None:
    """The share of the right mode is .7; 5 standard errors of 800 chains are .08."""
    x = WALKS[walk](kind, 800, 12)
    assert float((x[:, 0] > 1).double().mean()) == pytest.approx(0.7, abs=5 * (0.7 * 0.3 / 800) ** 0.5)
    assert float(x[:, 1].mean()) == pytest.approx(1.0, abs=0.2)


def test_a_model_that_knows_no_event_says_what_to_pass() -> None:
    bare = diffusion.from_denoiser(networks_of(MIXTURE)["denoiser"], (0.02, 20.0), variance=MIXTURE.variance)
    with pytest.raises(ValueError, match=r"expected a score that knows the shape of an event.*like="):
        Sampler(bare).start(3)
    assert Sampler(bare, like=(2,)).start(3).shape == (3, 2)
    assert Sampler(bare, like=f64([1.0, 2.0])).start(3).dtype == torch.float64

"""Peers in PyTorch: torchebm and ebmkit."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.law import Law, LogDensity
from benchmarks.peers.moves import PILOT_CHAINS, PILOT_SEED, Moves, mala_step

TRANSITIONS = 25
WARMUP = 200  # iterations of ebmkit's own warm-ups, on all pilot chains


def torch_peers(law: Law) -> Mapping[str, Callable[[], Moves]]:
    """Return the samplers by name, each to be tuned when it is called."""
    found: dict[str, Callable[[], Moves]] = {}
    if find_spec("torchebm"):
        found["torchebm Langevin, unadjusted"] = partial(_torchebm_langevin, law)
        found["torchebm HMC"] = partial(_torchebm_hmc, law)
    if find_spec("ebm"):
        found["ebmkit MALA"] = partial(_ebmkit, law, "AdaptiveMALA", TRANSITIONS)
        found["ebmkit NUTS"] = partial(_ebmkit, law, "NUTS", 4)
    return found


class Counted(nn.Module):
    """The energy of a law, which counts the points at which it is evaluated."""

    def __init__(self, law: Law) -> None:
        super().__init__()
        self.log_density, self.calls = LogDensity(law), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += len(x)
        return -self.log_density(x)  # type: ignore[no-any-return]


def _torchebm_energy(law: Law) -> Any:
    from torchebm.core import BaseModel

    class Energy(BaseModel):  # type: ignore[misc]  # torchebm is not there where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.counted = Counted(law)

        def forward(self, x: Tensor) -> Tensor:
            energy: Tensor = self.counted(x)
            return energy

    return Energy()


def _torchebm(sampler: Any, energy: Any, transitions: int, x: Tensor, seed: int) -> tuple[Tensor, float]:
    before, generator = energy.counted.calls, torch.Generator().manual_seed(seed)
    draws: Tensor = sampler.sample(x, n_steps=transitions, return_trajectory=True, generator=generator)
    return draws.transpose(0, 1), energy.counted.calls - before


def _torchebm_langevin(law: Law) -> Moves:
    from torchebm.samplers import LangevinDynamics

    energy, h = _torchebm_energy(law), mala_step(law)
    sampler = LangevinDynamics(energy, step_size=h)
    return Moves(
        f"step size {h:.3g}, tuned for our MALA without a covariance",
        TRANSITIONS,
        partial(_torchebm, sampler, energy, TRANSITIONS),
    )


def _torchebm_hmc(law: Law) -> Moves:
    from torchebm.samplers import HamiltonianMonteCarlo

    energy = _torchebm_energy(law)
    sampler = HamiltonianMonteCarlo(energy, step_size=0.1, n_leapfrog_steps=10)
    return Moves("10 leapfrog steps of 0.1, of its documentation", 5, partial(_torchebm, sampler, energy, 5))


def _ebmkit(law: Law, name: str, transitions: int) -> Moves:
    """Return a sampler of ebmkit after its own warm-up."""
    import ebm

    energy, sampler = Counted(law), getattr(ebm, name)(warmup=WARMUP)
    torch.manual_seed(PILOT_SEED)
    sampler.sample(energy, law.sample(PILOT_CHAINS, PILOT_SEED), steps=1)
    sampler.warmup = 0

    def advance(x: Tensor, seed: int) -> tuple[Tensor, float]:
        before = energy.calls
        torch.manual_seed(seed)
        draws = sampler.sample(energy, x, steps=transitions, return_trajectory=True)[1:]
        return draws, energy.calls - before

    settings = f"`{name}`, step size {sampler.step_size:.3g} by its own warm-up of {WARMUP} iterations"
    return Moves(settings, transitions, advance)

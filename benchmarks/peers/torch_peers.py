"""Peers in PyTorch: torchebm, ebmkit, and the annealed Langevin dynamics of score_sde written down."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.law import Law, LogDensity, Score
from benchmarks.peers.moves import PILOT_CHAINS, PILOT_SEED, Moves, mala_step

ANNEALED = "annealed Langevin of score_sde, unadjusted"
TRANSITIONS = 25
WARMUP = 200  # iterations of ebmkit's own warm-ups, on all pilot chains
LEVELS, LOWEST, SNR = 1000, 0.01, 0.16  # of score_sde's variance exploding models


def torch_peers(law: Law) -> Mapping[str, Callable[[], Moves]]:
    """Return the samplers by name, each to be tuned when it is called."""
    found: dict[str, Callable[[], Moves]] = {ANNEALED: partial(annealed_moves, law, 100)}
    if find_spec("torchebm"):
        found["torchebm Langevin, unadjusted"] = partial(_torchebm_langevin, law, None)
        found["torchebm Langevin, unadjusted, MALA's step"] = partial(_torchebm_langevin, law, mala_step)
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


def _torchebm_langevin(law: Law, step: Callable[[Law], float] | None) -> Moves:
    from torchebm.samplers import LangevinDynamics

    energy, h = _torchebm_energy(law), 0.01 if step is None else step(law)
    settings = "step size 0.01, of its documentation" if step is None else f"step size {h:.3g}, that of our MALA"
    sampler = LangevinDynamics(energy, step_size=h)
    return Moves(settings, TRANSITIONS, partial(_torchebm, sampler, energy, TRANSITIONS))


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


def annealed_moves(law: Law, levels: int) -> Moves:
    """Return Langevin steps through so many noise levels, one at each, from noise to draws."""
    net, data = Score(law), law.sample(1000, PILOT_SEED)
    highest = float(torch.cdist(data, data).max())
    settings = (
        f"{LEVELS:,} noise levels from {highest:.3g}, the largest distance of two draws, to {LOWEST}, one step at "
        f"each, signal-to-noise ratio {SNR}"
    )
    return Moves(settings, levels, partial(annealed, net, highest, levels), independent=LEVELS)


@torch.inference_mode()
def annealed(net: Score, highest: float, levels: int, x: Tensor, seed: int) -> tuple[Tensor, float]:
    """Return draws after every noise level, from noise of the highest: the corrector `ald` without a predictor."""
    generator = torch.Generator().manual_seed(seed)
    sigmas = torch.logspace(math.log10(highest), math.log10(LOWEST), levels)
    x = highest * torch.randn(x.shape, generator=generator)
    draws = torch.empty(levels, *x.shape)
    for k, sigma in enumerate(sigmas):
        h = 2 * (SNR * sigma) ** 2
        x = x + h * net(x, sigma) + (2 * h).sqrt() * torch.randn(x.shape, generator=generator)
        draws[k] = x
    return draws, float(levels * len(x))

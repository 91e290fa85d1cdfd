"""The peers' side of `benchmarks.cost`, run in their environment: prints JSON.

Both samplers evaluate the gradient of a log density network with the hidden layers of our score network. The unit is
the same as ours, one bare forward of that *score* network on all chains, in the sampler's own framework and process.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import timing
from benchmarks.timing import BARE, STEP_SIZE, Case, Effort, Measured


def blackjax_mala(case: Case, effort: Effort) -> Measured:
    """Measure blackjax's MALA: one jitted scan over the steps, vmap over the chains."""
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # no second thread for the dispatch either

    def function(network: nn.Sequential) -> Callable[[Any], Any]:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        *hidden, last = [(jnp.asarray(layer.weight.numpy().T), jnp.asarray(layer.bias.numpy())) for layer in linear]

        def forward(x: Any) -> Any:
            for weight, bias in hidden:
                x = jax.nn.softplus(x @ weight + bias)
            return x @ last[0] + last[1]

        return forward

    score, density = jax.jit(function(timing.score_network(case))), function(timing.density_network(case))
    mala = blackjax.mala(lambda x: density(x)[0], STEP_SIZE)
    x = jax.random.normal(jax.random.key(0), (case.chains, case.dimension))
    start = jax.jit(jax.vmap(mala.init))(x)

    def step(states: Any, key: Any) -> Any:
        states, info = jax.vmap(mala.step)(jax.random.split(key, case.chains), states)
        return states, (states.position, info.acceptance_rate, info.is_accepted)  # what our draws hold

    def bare(steps: int) -> None:
        for _ in range(steps):
            output = score(x)
        jax.block_until_ready(output)

    steps = timing.steps_for(bare, effort)
    keys = jax.random.split(jax.random.key(1), steps)
    run = jax.jit(lambda: jax.lax.scan(step, start, keys))
    seconds = timing.interleaved({BARE: lambda: bare(steps), "step": lambda: jax.block_until_ready(run())}, effort)
    return _measured(seconds, steps, float(run()[1][2].mean()))


def torchebm_langevin(case: Case, effort: Effort) -> Measured:
    """Measure torchebm's Langevin sampler, which does not reject."""
    from torchebm.core import BaseModel
    from torchebm.samplers import LangevinDynamics

    class Energy(BaseModel):  # type: ignore[misc]  # torchebm is not there where types are checked
        def __init__(self, log_density: nn.Sequential) -> None:
            super().__init__()
            self.log_density = log_density

        def forward(self, x: Tensor) -> Tensor:
            log_density: Tensor = self.log_density(x)
            return -log_density.squeeze(1)

    network, x = timing.score_network(case), torch.randn(case.chains, case.dimension)
    sampler = LangevinDynamics(Energy(timing.density_network(case)), step_size=STEP_SIZE)

    @torch.inference_mode()
    def bare(steps: int) -> None:
        for _ in range(steps):
            network(x)

    steps = timing.steps_for(bare, effort)
    seconds = timing.interleaved(
        {BARE: lambda: bare(steps), "step": lambda: sampler.sample(x, n_steps=steps, return_trajectory=True)}, effort
    )
    return _measured(seconds, steps, 1.0)


def _measured(seconds: dict[str, list[float]], steps: int, acceptance_rate: float) -> Measured:
    unit = timing.microseconds(seconds[BARE], steps)
    return Measured(timing.ratio(seconds["step"], seconds[BARE]), acceptance_rate, unit)


PEERS = {
    "blackjax": ("blackjax MALA (JAX), gradient of a density network", blackjax_mala),
    "torchebm": ("torchebm Langevin (unadjusted), gradient of a density network", torchebm_langevin),
}


def main() -> None:
    if hasattr(os, "sched_setaffinity"):  # no XLA flag keeps it to one thread; one core does
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    timing.steady()
    effort = timing.QUICK if "--quick" in sys.argv[1:] else timing.FULL
    present = {package: peer for package, peer in PEERS.items() if find_spec(package)}
    rows: dict[str, dict[str, Measured]] = {row: {} for row, _ in present.values()}
    for case in timing.CASES:
        for row, measure in present.values():
            rows[row][case.label] = measure(case, effort)
        print(f"{case.label}: peers measured", file=sys.stderr)
    versions = {package: version(package) for package in ("torch", "jax", *PEERS) if find_spec(package)}
    missing = [package for package in PEERS if package not in present]
    print(json.dumps({"rows": rows, "versions": versions, "missing": missing}))


if __name__ == "__main__":
    main()

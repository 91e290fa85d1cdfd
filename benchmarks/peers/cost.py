"""The peers' side of `benchmarks.cost`, run in their environment: prints JSON.

MALA with Simpson's rule written in JAX has our algorithm and our score network; blackjax's MALA evaluates a log density
network with the same hidden layers, and its gradient. Each is one jitted scan over the steps. The unit is one bare
forward of the *score* network on all chains, in JAX and in the same process.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from torch import nn

from benchmarks import timing
from benchmarks.timing import BARE, STEP_SIZE, Case, Effort, Measured

SIMPSON, BLACKJAX = "MALA, Simpson, the same written in JAX", "blackjax MALA, gradient of a density network"


def function(network: nn.Sequential) -> Callable[[Any], Any]:
    """Return a network of PyTorch as a function of JAX."""
    import jax
    import jax.numpy as jnp

    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    *hidden, last = [(jnp.asarray(layer.weight.numpy().T), jnp.asarray(layer.bias.numpy())) for layer in linear]

    def forward(x: Any) -> Any:
        for weight, bias in hidden:
            x = jax.nn.softplus(x @ weight + bias)
        return x @ last[0] + last[1]

    return forward


def measured(case: Case, effort: Effort) -> dict[str, Measured]:
    """Measure both samplers in one case."""
    import blackjax
    import jax
    import jax.numpy as jnp

    network, density = function(timing.score_network(case)), function(timing.density_network(case))
    mala = blackjax.mala(lambda x: density(x)[0], STEP_SIZE)
    x = jax.random.normal(jax.random.key(0), (case.chains, case.dimension))

    def blackjax_step(states: Any, key: Any) -> Any:
        states, info = jax.vmap(mala.step)(jax.random.split(key, case.chains), states)
        return states, (states.position, info.acceptance_rate, info.is_accepted)  # what our draws hold

    def simpson_step(state: Any, key: Any) -> Any:
        (x, s), (key, other) = state, jax.random.split(key)
        y = x + STEP_SIZE * s + math.sqrt(2 * STEP_SIZE) * jax.random.normal(key, x.shape)
        t, middle = network(y), network((x + y) / 2)
        change = (2 / 3 * (y - x) * (middle - (s + t) / 2)).sum(1) - STEP_SIZE / 4 * ((t - s) * (t + s)).sum(1)
        accepted = jnp.log(jax.random.uniform(other, (case.chains,))) < change
        state = jnp.where(accepted[:, None], y, x), jnp.where(accepted[:, None], t, s)
        return state, (state[0], jnp.exp(jnp.minimum(change, 0)), accepted)

    score = jax.jit(network)

    def bare(steps: int) -> None:
        for _ in range(steps):
            output = score(x)
        jax.block_until_ready(output)

    steps = timing.steps_for(bare, effort)
    keys = jax.random.split(jax.random.key(1), steps)
    starts = {SIMPSON: (simpson_step, (x, score(x))), BLACKJAX: (blackjax_step, jax.jit(jax.vmap(mala.init))(x))}
    runs = {
        row: jax.jit(lambda step=step, start=start: jax.lax.scan(step, start, keys))
        for row, (step, start) in starts.items()
    }
    alternatives: dict[str, Callable[[], object]] = {BARE: lambda: bare(steps)}
    for row, run in runs.items():
        alternatives[row] = lambda run=run: jax.block_until_ready(run())  # type: ignore[misc]
    seconds = timing.interleaved(alternatives, effort)
    unit = timing.microseconds(seconds[BARE], steps)
    return {
        row: Measured(timing.ratio(seconds[row], seconds[BARE]), float(run()[1][2].mean()), unit)
        for row, run in runs.items()
    }


def main() -> None:
    import jax

    if hasattr(os, "sched_setaffinity"):  # no XLA flag keeps it to one thread; one core does
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # no second thread for the dispatch either
    timing.steady()
    effort = timing.QUICK if "--quick" in sys.argv[1:] else timing.FULL
    rows: dict[str, dict[str, Measured]] = {SIMPSON: {}, BLACKJAX: {}}
    for case in timing.CASES:
        for row, cell in measured(case, effort).items():
            rows[row][case.label] = cell
            print(f"{case.label}: {row} {cell.ratio.median:.2f}, {cell.acceptance_rate:.3f}", file=sys.stderr)
    print(json.dumps({"rows": rows, "versions": {package: version(package) for package in ("jax", "blackjax")}}))


if __name__ == "__main__":
    main()

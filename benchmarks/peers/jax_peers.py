"""Peers in JAX: MALA and NUTS of blackjax on the density network, ZigZag of pdmp_jax on the score network."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.law import Law, LogDensity, Score
from benchmarks.peers.moves import PILOT_SEED, Moves, mala_step

WARMUP = 1000  # steps of blackjax's window adaptation, its default, on one chain
EVENTS = 4  # changes of direction between two draws of ZigZag, for every coordinate
MAX_ZIGZAG = 2  # dimensions up to which it is measured: paths of many chains wait for each other at every event
GRID = 10  # pdmp_jax's default


def jax_peers(law: Law) -> Mapping[str, Callable[[], Moves]]:
    """Return the samplers by name, each to be tuned when it is called."""
    found: dict[str, Callable[[], Moves]] = {}
    if find_spec("blackjax"):
        found["blackjax MALA"] = partial(_mala, law)
        found["blackjax NUTS"] = partial(_nuts, law)
    if find_spec("pdmp_jax") and law.dimension <= MAX_ZIGZAG:
        found["pdmp_jax ZigZag"] = partial(_zigzag, law)
    return found


def _weights(net: Score | LogDensity) -> list[Any]:
    import jax.numpy as jnp

    layers = net.first, net.second, net.last
    return [(jnp.asarray(layer.weight.numpy().T), jnp.asarray(layer.bias.numpy())) for layer in layers]


def _log_density(law: Law) -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    net = LogDensity(law)
    (w1, b1), (w2, b2), (w3, b3) = _weights(net)
    variances, softplus = jnp.asarray(net.variances.numpy()), jax.nn.softplus
    return lambda x: (softplus(softplus(x @ w1 + b1) @ w2 + b2) @ w3 + b3)[0] - (x * x / variances).sum() / 2


def _score(law: Law) -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    net = Score(law)
    (w1, b1), (w2, b2), (w3, b3) = _weights(net)
    variances = jnp.asarray(net.variances.numpy())

    def score(x: Any) -> Any:
        hidden = jax.nn.softplus(jnp.tanh((x / variances) @ w1 + b1) @ w2 + b2)
        return (hidden @ w3 + b3 - x) / variances

    return score


def _blackjax(algorithm: Any, calls: Callable[[Any], Any], transitions: int) -> Any:
    """Return `advance` of an algorithm: one jitted scan over the transitions, vmap over the chains."""
    import jax
    import jax.numpy as jnp

    def step(states: Any, key: Any) -> Any:
        states, info = jax.vmap(algorithm.step)(jax.random.split(key, len(states.position)), states)
        return states, (states.position, calls(info))

    def scanned(x: Any, key: Any) -> Any:
        return jax.lax.scan(step, jax.vmap(algorithm.init)(x), jax.random.split(key, transitions))[1]

    run = jax.jit(scanned)

    def advance(x: Tensor, seed: int) -> tuple[Tensor, float]:
        draws, made = run(jnp.asarray(x.numpy()), jax.random.key(seed))
        return torch.from_numpy(np.array(draws)), len(x) + float(np.asarray(made).sum())

    return advance


def _mala(law: Law) -> Moves:
    import blackjax

    h = mala_step(law)
    advance = _blackjax(blackjax.mala(_log_density(law), h), lambda info: info.is_accepted.size, 50)
    return Moves(f"step size {h:.3g}, tuned for our MALA without a covariance", 50, advance)


def _nuts(law: Law) -> Moves:
    import blackjax
    import jax
    import jax.numpy as jnp

    log_density = _log_density(law)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    start = jnp.asarray(law.sample(1, PILOT_SEED)[0].numpy())
    run = jax.jit(lambda key: adaptation.run(key, start, WARMUP)[0].parameters)
    parameters = run(jax.random.key(PILOT_SEED))
    advance = _blackjax(blackjax.nuts(log_density, **parameters), lambda info: info.num_integration_steps.sum(), 10)
    h = float(parameters["step_size"])
    settings = f"step size {h:.3g} and a diagonal metric by its window adaptation of {WARMUP:,} steps on one chain"
    return Moves(settings, 10, advance)


def _zigzag(law: Law) -> Moves:
    """Return stretches of ZigZag paths: one draw of every chain after so many events of every coordinate."""
    import jax
    import jax.numpy as jnp
    from pdmp_jax import ZigZag

    score, draws, events = _score(law), 2, EVENTS * law.dimension
    sampler = ZigZag(law.dimension, lambda x: -score(x), grid_size=GRID)

    def path(x: Any, v: Any, seed: Any) -> Any:
        skeleton = sampler.sample_skeleton(draws * events, x, v, seed, verbose=False)
        bounds = skeleton.hitting_horizon.sum() + skeleton.error_bound.sum() + draws * events
        thinned = skeleton.rejected.sum() + skeleton.error_bound.sum() + 2 * draws * events
        return sampler.sample_from_skeleton(draws, skeleton), bounds * (GRID + 1) + thinned

    run = jax.jit(jax.vmap(path))

    def advance(x: Tensor, seed: int) -> tuple[Tensor, float]:
        velocities = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(seed)).mul(2).sub(1).float()
        seeds = seed * len(x) + np.arange(len(x), dtype=np.uint32)
        found, calls = run(jnp.asarray(x.numpy()), jnp.asarray(velocities.numpy()), jnp.asarray(seeds))
        return torch.from_numpy(np.array(found)).transpose(0, 1), float(np.asarray(calls, np.float64).sum())

    settings = f"its defaults, a grid of {GRID} and an adaptive horizon; {events} events between draws"
    return Moves(settings, draws, advance)

r"""Diffusion models: adapters for other people's networks, and log p from the scores of all noise levels.

For `p_sigma = p * N(0, sigma^2 I)` the heat equation gives

    d log p_sigma(x) / d log sigma = sigma^2 (div s(x, sigma) + |s(x, sigma)|^2)

so that log p at a low level, and with it the weights of modes, is an integral along the noise axis that starts where
p_sigma is normal. It avoids the regions between modes, where a learned score is wrong.

| name | description |
|---|---|
| `log_density(model, x)` | log p at the model's noise level, normalised |
| `flow_log_density(model, x)` | the same by the probability flow, at several times the cost |
| `log_density_change(model, x, from_level, to_level)` | change of log p at x from one noise level to another |
| `level_score(score, x, sigma)` | score and divergence of any network, by forward-mode differentiation |
| `random_directions(size, like, probes)` | the directions of Hutchinson's estimate of a divergence |

| adapter to a `DiffusionModel` | network |
|---|---|
| `from_denoiser(net)`, `from_edm(net)` | denoiser E[x0 \| x], called with sigma |
| `from_epsilon`, `from_x0`, `from_v` `(net, alphas_cumprod)` | prediction of DDPM type, called with a timestep |
| `from_velocity(net)` | velocity of flow matching or rectified flow |
| `from_score(net, sigmas)` | score, called with sigma or the index of a level |
| `from_diffusers(unet, scheduler)` | network of the library diffusers |
"""

from scoremh.diffusion.diffusers import from_diffusers
from scoremh.diffusion.log_density import (
    NODES_BETWEEN_LEVELS,
    LogDensity,
    Path,
    flow_log_density,
    log_density,
    log_density_change,
    noise_span,
)
from scoremh.diffusion.model import (
    Conditional,
    DiffusionModel,
    Settings,
    TimestepSettings,
    WrappingWarning,
    from_denoiser,
    from_edm,
    from_epsilon,
    from_score,
    from_v,
    from_velocity,
    from_x0,
    level_score,
    random_directions,
    together,
)

__all__ = [
    "NODES_BETWEEN_LEVELS",
    "Conditional",
    "DiffusionModel",
    "LogDensity",
    "Path",
    "Settings",
    "TimestepSettings",
    "WrappingWarning",
    "flow_log_density",
    "from_denoiser",
    "from_diffusers",
    "from_edm",
    "from_epsilon",
    "from_score",
    "from_v",
    "from_velocity",
    "from_x0",
    "level_score",
    "log_density",
    "log_density_change",
    "noise_span",
    "random_directions",
    "together",
]

"""Draws from the paper's synthetic distributions: independent, except for `moons`, which spreads its points evenly.

- `moons`, `s_curve`, `swiss_roll`: scikit-learn's curves and surfaces, with isotropic Gaussian noise.
- `pinwheel`: x = r (cos phi, sin phi) + delta u, where phi = 2 pi k / K + rate r on the arm k of K,
  r ~ N(1, radial_std^2) and delta ~ N(0, tangential_std^2). The paper prints u = (1, 1); u = (-sin phi, cos phi) is
  orthogonal to the radius.
- `gaussian`: N(mean, std^2).

The defaults are the paper's parameters.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from scoremh._shared import checks, rng
from scoremh.datasets import _arguments

Variant = Literal["paper", "correct"]


def _like(n: int, dtype: torch.dtype | None, generator: Generator | None) -> Tensor:
    """Check n, and return an empty tensor with the dtype and device of the draws."""
    checks.count(n, "n")
    return torch.empty(
        0, dtype=_arguments.floating_dtype(dtype), device=None if generator is None else generator.device
    )


def _draw(make: Callable[..., Any], n: int, noise: float, generator: Generator | None, like: Tensor) -> Tensor:
    """Draw with a function of scikit-learn, which takes a 32-bit seed and leaves numpy's global state alone."""
    _arguments.require_std(noise, "noise")
    seed = rng.seeds(1, generator)[0] % 2**32
    x, _ = make(n, noise=noise, random_state=seed)
    return torch.from_numpy(x).to(like)


def moons(
    n: int = 10_000, *, noise: float = 0.1, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 2"]:
    """Draw n points of two interlocking half circles; `noise` is a standard deviation."""
    from sklearn.datasets import make_moons  # here, so that `import scoremh` stays light

    return _draw(make_moons, n, noise, generator, _like(n, dtype, generator))


def s_curve(
    n: int = 10_000, *, noise: float = 0.1, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 3"]:
    """Draw n points of a surface bent like an S; `noise` is a standard deviation."""
    from sklearn.datasets import make_s_curve

    return _draw(make_s_curve, n, noise, generator, _like(n, dtype, generator))


def swiss_roll(
    n: int = 10_000, *, noise: float = 0.5, generator: Generator | None = None, dtype: torch.dtype | None = None
) -> Float[Tensor, "draw 3"]:
    """Draw n points of a rolled-up surface, about 30 wide; `noise` is a standard deviation."""
    from sklearn.datasets import make_swiss_roll

    return _draw(make_swiss_roll, n, noise, generator, _like(n, dtype, generator))


def pinwheel(
    n: int = 10_000,
    *,
    classes: int = 5,
    radial_std: float = 0.5,
    tangential_std: float = 0.05,
    rate: float = 0.25,
    variant: Variant = "paper",
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "draw 2"]:
    """Draw n points of a pinwheel with bent arms.

    "paper" is the paper's algorithm as printed: it adds one number to both coordinates. Where an arm runs along the
    diagonal, that noise gives it no width: the density is infinite there, and so is the Fisher information. The losses
    of implicit and sliced score matching then have no lower bound, and a network that follows them far enough diverges.
    "correct" has independent radial and tangential noise, hence width everywhere.

    Args:
        n: Number of points.
        classes: Number of arms K, all equally likely. The paper's text says six, its parameters five.
        radial_std: Standard deviation of the distance from the origin, whose mean is 1.
        tangential_std: Standard deviation of the noise across an arm.
        rate: Angle alpha, in radians, by which an arm turns over a distance of 1.
        variant: "paper" or "correct".
        generator: Random number generator; the same seed gives the same draws.
        dtype: Floating dtype of the points; torch's default where None.
    """
    like = _like(n, dtype, generator)
    checks.count(classes, "classes")
    _arguments.require_std(radial_std, "radial_std")
    _arguments.require_std(tangential_std, "tangential_std")
    _arguments.require_finite(rate, "rate")
    checks.one_of(variant, get_args(Variant), "variant")
    arm = torch.randint(classes, (n, 1), generator=rng.resolve(generator, like.device), device=like.device)
    r, delta = rng.normal((2, n, 1), like, generator).unbind()
    r, delta = 1 + radial_std * r, tangential_std * delta
    phi = 2 * math.pi / classes * arm.to(like) + rate * r
    u = torch.cat([-phi.sin(), phi.cos()], dim=1) if variant == "correct" else torch.ones_like(phi)
    return r * torch.cat([phi.cos(), phi.sin()], dim=1) + delta * u


def gaussian(
    n: int = 10_000,
    *,
    mean: float = 3.0,
    std: float = math.sqrt(2),
    generator: Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "draw 1"]:
    """Draw n numbers from a normal distribution, by default the paper's N(3, 2), with 2 taken as the variance."""
    like = _like(n, dtype, generator)
    _arguments.require_finite(mean, "mean")
    _arguments.require_std(std, "std")
    return mean + std * rng.normal((n, 1), like, generator)

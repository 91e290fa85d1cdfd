r"""Coordinates: invertible maps x = f(u), and what they do to points, scores and densities.

With the Jacobian J = df / du, a gradient with respect to x is pulled back to one with respect to u, and a density gains
the volume of J:

    g_u = J^T g_x,    log p_u(u) = log p_x(x) + log |det J(u)|,    s_u(u) = J^T s_x(x) + grad log |det J(u)|

| map | x = f(u) | log \|det J\| |
|---|---|---|
| `Affine(mean, root)` | m + L u | log \|det L\| |
| `Sinh(mean, scale)` | m + w sinh(u), one by one | sum log(w cosh u) |
| `SquareRoot()` | v with u = v / (1 + v^2)^(1/4), one by one | sum log(dv / du) |
| `Log(bound, sign)` | b + exp(u) or b - exp(u), one by one | sum u |
| `Logit(low, high)` | low + (high - low) / (1 + exp(-u)), one by one | sum log(dx / du) |
| `Blocks(maps, sizes)` | a map for every group of coordinates | the sum of all |
| `Compose(outer, inner)` | outer(inner(u)) | the sum of both |

Points are `(chain, *event)`; a matrix acts on the flattened event. Coordinates are modules without weights: they are
saved with a network and follow it to its dtype and device.
"""

from scoremh.coordinates.affine import MAX_WHITENED_SIZE, Affine, cholesky, times
from scoremh.coordinates.blocks import Blocks
from scoremh.coordinates.composition import Compose, Coordinates
from scoremh.coordinates.elementwise import Elementwise, Log, Logit, Sinh, SquareRoot

__all__ = [
    "MAX_WHITENED_SIZE",
    "Affine",
    "Blocks",
    "Compose",
    "Coordinates",
    "Elementwise",
    "Log",
    "Logit",
    "Sinh",
    "SquareRoot",
    "cholesky",
    "times",
]

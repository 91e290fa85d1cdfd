"""The divergence of a score: exact, by a forward tangent for every coordinate, or estimated along random directions."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks, rng

LevelScoreFn = Callable[[Tensor, Tensor], Tensor]


def level_score(
    score: LevelScoreFn,
    x: Float[Tensor, "chain *event"],
    sigma: Tensor | float,
    directions: Float[Tensor, "direction d"] | None = None,
) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
    """Return a score and sum_i v_i . J v_i, which is its divergence where the v_i are the unit vectors.

    Args:
        score: Score called as `score(x, sigma)`, with one noise level per chain.
        x: Points, `(chain, *event)`.
        sigma: Noise level, a number or one per chain.
        directions: Vectors v_i over the flattened event; the unit vectors, one for every coordinate, when None.
    """
    size = x[0].numel()
    v = torch.eye(size, dtype=x.dtype, device=x.device) if directions is None else directions.to(x)
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
    # one call with every chain for every direction: a vmap would need rules for all that the network does
    many, levels = x.repeat(len(v), *(1,) * (x.ndim - 1)), level.repeat(len(v))
    along = v.repeat_interleave(len(x), 0).reshape(many.shape)
    answer: tuple[Tensor, Tensor] = torch.func.jvp(lambda at: score(at, levels), (many,), (along,))  # type: ignore[assignment]
    values, products = answer
    checks.answer(values, many, many.shape, "score")
    return values[: len(x)], (products * along).flatten(1).sum(1).reshape(len(v), len(x)).sum(0)


def random_directions(size: int, like: Tensor, probes: int, seed: int = 0) -> Float[Tensor, "direction d"]:
    """Return directions for Hutchinson's estimate: random signs, the same for every point, over the square root of n.

    A divergence estimated along fixed directions is a fixed function of x, so that chains judged by it are reversible;
    it is biased all the same, and so are the weights of modes.

    Args:
        size: Number of coordinates of an event.
        like: Tensor with the dtype and device of the points.
        probes: Number n of directions.
        seed: Random seed; the same seed gives the same directions.
    """
    checks.count(probes, "probes")
    signs = rng.uniform((probes, size), like, rng.seeded(seed, like.device)).sub(0.5).sign()
    directions: Tensor = signs / probes**0.5
    return directions

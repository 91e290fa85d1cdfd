"""Whether a product of parts can be normalised, as far as that can be seen.

With negative weights a product may grow in its tails. For normal parts the sum of w_i C_i^-1 has to be positive
definite. For others the score is asked far out: along a direction u, log p changes by s.u per unit of length, and
p ~ r^-a, whose slope is -a / r, has an integral in d dimensions only for a > d:

    r s(m + r u).u < -d    for every direction u
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.algebra import inner
from scoremh.targets.distribution import Distribution
from scoremh.targets.gaussians import Gaussian
from scoremh.types import ScoreFn, TargetLike

FAR = 100.0  # how far out to ask, in units of the farthest of the points
RANDOM_DIRECTIONS, MAX_AXES = 64, 64


def require_one_event(parts: Sequence[TargetLike]) -> None:
    """Refuse distributions over events of several shapes."""
    events = {f"parts[{i}]": part._event for i, part in enumerate(parts) if isinstance(part, Distribution)}
    if len({tuple(event) for event in events.values()}) > 1:
        got = ", ".join(f"{tuple(event)} of {name}" for name, event in events.items())
        fix = "Every part has to be a distribution of the same x."
        raise ValueError(checks.message("parts with events of one shape", got, fix))


def require_normalizable(parts: Sequence[TargetLike], weights: Sequence[float]) -> None:
    """Refuse a product of normal distributions whose precision matrix is not positive definite."""
    normal = [part for part in parts if isinstance(part, Gaussian)]
    if len(normal) < len(parts) or min(weights) > 0:
        return
    precisions = [torch.linalg.inv(part.covariance.double()) for part in normal]
    total = sum(weight * precision for weight, precision in zip(weights, precisions, strict=True))
    assert isinstance(total, Tensor)
    least = float(torch.linalg.eigvalsh(total)[0])
    if not least > 0:
        fix = "Give less weight to the parts that are divided by, or check that they are wider than the others."
        got = f"weights {list(weights)}, with which the precision matrix has an eigenvalue of {least:.3g}"
        raise ValueError(checks.message("a product that can be normalised", got, fix))


def share_outward(score: ScoreFn, x: Tensor) -> float:
    """Return the share of directions in which p does not fall fast enough to have an integral, far out from points x.

    Args:
        score: Grad log p.
        x: Points near most of p, `(chain, *event)`.
    """
    centre, size = x.mean(0, keepdim=True), x[0].numel()
    farthest = float((x - centre).abs().max()) or float(centre.abs().max()) or 1.0
    noise = torch.randn(RANDOM_DIRECTIONS, size, generator=torch.Generator().manual_seed(0)).to(x)
    axes = torch.eye(size, dtype=x.dtype, device=x.device)[:MAX_AXES]
    directions = torch.cat([noise / noise.norm(dim=1, keepdim=True), axes, -axes]).reshape(-1, *x.shape[1:])
    radius = FAR * farthest * size**0.5
    return float((radius * inner(score(centre + radius * directions), directions) >= -size).double().mean())

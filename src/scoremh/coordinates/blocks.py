"""Maps of their own for parts of an event."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh.coordinates.composition import Coordinates, Points


class Blocks(Coordinates):
    """The map whose consecutive groups of coordinates each have a map of their own: columns of a table.

    Args:
        maps: Map of each group, in order.
        sizes: Number of coordinates of each group; 1 each if None.
    """

    def __init__(self, maps: Sequence[Coordinates], sizes: Sequence[int] | None = None) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)
        self.sizes = [1] * len(maps) if sizes is None else list(sizes)
        if len(self.sizes) != len(maps) or not maps:
            got = f"{len(maps)} maps and {len(self.sizes)} sizes"
            raise ValueError(checks.message("a size for every map", got, "Pass as many of one as of the other."))

    def _each(self, method: str, *points: Points) -> list[Tensor | float]:
        """Return what a method of every map answers for its group."""
        groups = zip(*(part.split(self.sizes, 1) for part in points), strict=True)
        return [getattr(part, method)(*group) for part, group in zip(self.maps, groups, strict=True)]

    def forward(self, u: Points) -> Points:
        """Return every group through its map."""
        return torch.cat(self._each("forward", u), 1)  # type: ignore[arg-type]

    def inverse(self, x: Points) -> Points:
        """Return every group through the inverse of its map."""
        return torch.cat(self._each("inverse", x), 1)  # type: ignore[arg-type]

    def pull_gradient(self, gradient: Points, u: Points) -> Points:
        """Return every group pulled through its map."""
        return torch.cat(self._each("pull_gradient", gradient, u), 1)  # type: ignore[arg-type]

    def push_gradient(self, gradient: Points, u: Points) -> Points:
        """Return every group pushed through its map."""
        return torch.cat(self._each("push_gradient", gradient, u), 1)  # type: ignore[arg-type]

    def log_det(self, u: Points) -> Float[Tensor, " chain"]:
        """Return the sum over the groups."""
        return torch.stack(self._each("log_det", u)).sum(0)  # type: ignore[arg-type]

    def log_det_gradient(self, u: Points) -> Points:
        """Return the gradient of every group's own."""
        found, groups = self._each("log_det_gradient", u), u.split(self.sizes, 1)
        return torch.cat([part + torch.zeros_like(group) for part, group in zip(found, groups, strict=True)], 1)

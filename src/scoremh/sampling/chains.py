"""The draws of many chains, with a record of every transition that led to them.

Axes are `(chain, draw, *event)`. With thinning, a draw stands for `thin` transitions, each of which was one of:
accepted, rejected by the coin, rejected because a number was not finite, rejected because the candidate lay outside
the support.
"""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

    from scoremh.evaluation import Evaluation


@dataclass(frozen=True, eq=False)
class Chains:
    """What `sample` returns.

    Args:
        draws: The kept positions.
        acceptance_prob: Mean acceptance probability a(x', x) over the transitions of a draw.
        accepted: How many of them were accepted.
        nonfinite: How many were rejected because the candidate, its score or its ratio was not finite, or because a
            Hamiltonian trajectory diverged.
        outside: How many were rejected because p is 0 at the candidate.
        thin: Transitions per draw.
        score_calls: Points at which the score was evaluated, over all chains, warm-up included.
        moves: Moves accepted, over all chains, warm-up included.
        factors: Random factors drawn by a rule that is random itself, over all chains, warm-up included.
        clipped: How many of them were clipped to their bound; a decision by one is for another ratio than the true one.
        description: The kernel that made them.
    """

    draws: Float[Tensor, "chain draw *event"]
    acceptance_prob: Float[Tensor, "chain draw"]
    accepted: Int[Tensor, "chain draw"]
    nonfinite: Int[Tensor, "chain draw"]
    outside: Int[Tensor, "chain draw"]
    thin: int = 1
    score_calls: int = 0
    moves: int = 0
    factors: int = 0
    clipped: int = 0
    description: str = "a kernel"

    @property
    def rejected(self) -> Int[Tensor, "chain draw"]:
        """How many transitions of a draw proposed a valid candidate and rejected it."""
        return self.thin - self.accepted - self.nonfinite - self.outside

    @property
    def diverging(self) -> Bool[Tensor, "chain draw"]:
        """Which draws had a transition that was rejected because it diverged: `nonfinite` above 0 (ArviZ's name)."""
        return self.nonfinite > 0

    @property
    def acceptance_rate(self) -> float:
        """The share of all recorded transitions that were accepted."""
        return float(self.accepted.double().mean()) / self.thin

    @property
    def last(self) -> Float[Tensor, "chain *event"]:
        """The last draw of every chain."""
        return self.draws[:, -1]

    def __repr__(self) -> str:
        """Show the shape, the acceptance rate and the cost."""
        chains, draws, *event = self.draws.shape
        cost = f"{self.score_calls / self.moves:.3g}" if self.moves else "no"
        lost = f", {int(self.nonfinite.sum())} diverging" if self.nonfinite.any() else ""
        lost += f", {int(self.outside.sum())} outside the support" if self.outside.any() else ""
        lost += f", clipped {self.clipped / self.factors:.2%} of {self.factors:,} factors" if self.factors else ""
        return (
            f"Chains({chains} chains x {draws} draws of {tuple(event)}, {self.description}: "
            f"acceptance {self.acceptance_rate:.3f}{lost}, {cost} score calls per accepted move)"
        )

    def evaluate(
        self, reference: Float[Tensor, "row *event"], *, points: int = 1000, seed: int = 0, progress: bool = False
    ) -> "Evaluation":
        """Compare the last draws with rows that nothing was learned from, and return distances, floors and a p-value.

        Args:
            reference: Rows to compare with.
            points: Number of points to compare at most; the floor takes twice as many rows of the reference.
            seed: Random seed; the same seed gives the same numbers.
            progress: Show a progress bar.
        """
        from scoremh import evaluation

        return evaluation.evaluate(self.last, reference, points=points, seed=seed, progress=progress)

    def report(self, path: str | Path, reference: Float[Tensor, "row *event"] | None = None) -> None:
        """Write a page with draws, traces, acceptance and warnings, which opens offline; needs the extra `report`.

        Args:
            path: HTML file to write.
            reference: Rows to show beside the draws and to compare them with; none if None.
        """
        from scoremh import report

        report.write(report.chain_contents(self, reference), path)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure with the draws of the first two coordinates and their traces; needs the extra `report`.

        Args:
            path: Image file to write as well.
        """
        from scoremh.report import static

        figure = static.chain_figure(self)
        if path is not None:
            figure.savefig(path)
        return figure

    def to_arviz(self) -> "DataTree":
        """Return the draws as ArviZ's data model: a tree with the groups `posterior` and `sample_stats`."""
        import arviz_base

        stats = {
            "acceptance_rate": _array(self.acceptance_prob),
            "diverging": _array(self.diverging),
            "accepted": _array(self.accepted),
            "rejected": _array(self.rejected),
            "nonfinite": _array(self.nonfinite),
            "outside_support": _array(self.outside),
        }
        attrs = {
            "inference_library": "scoremh",
            "inference_library_version": version("scoremh"),
            "thin": self.thin,
            "score_calls": self.score_calls,
            "moves": self.moves,
            "factors": self.factors,
            "clipped": self.clipped,
            "description": self.description,
        }
        groups = {"posterior": {"x": _array(self.draws)}, "sample_stats": stats}
        return arviz_base.from_dict(
            groups, attrs={"posterior": attrs}, check_conventions=False
        )  # more chains than draws are usual here

    def save(self, path: str | Path) -> None:
        """Write a NetCDF file that ArviZ reads."""
        with replacing(Path(path)) as partial:
            self.to_arviz().to_netcdf(partial, engine="h5netcdf")

    @classmethod
    def load(cls, path: str | Path) -> "Chains":
        """Read what `save` wrote."""
        import xarray

        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            if "posterior" not in tree or tree["posterior"].attrs.get("inference_library") != "scoremh":
                got = f"{path}, which holds the groups {json.dumps(sorted(tree.children))} of another library"
                fix = "Read it with xarray.open_datatree."
                raise ValueError(checks.message("a file written by Chains.save", got, fix))
            attrs = tree["posterior"].attrs
            stats = {
                name: torch.from_numpy(values.to_numpy()) for name, values in tree["sample_stats"].data_vars.items()
            }
            draws = torch.from_numpy(tree["posterior"]["x"].to_numpy())
        return cls(
            draws,
            stats["acceptance_rate"],
            stats["accepted"],
            stats["nonfinite"],
            stats["outside_support"],
            thin=int(attrs["thin"]),
            score_calls=int(attrs["score_calls"]),
            moves=int(attrs["moves"]),
            factors=int(attrs.get("factors", 0)),  # of a file that was written before they were counted
            clipped=int(attrs.get("clipped", 0)),
            description=str(attrs["description"]),
        )


def _array(x: Tensor) -> np.ndarray:
    """Return a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()

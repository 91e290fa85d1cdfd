"""The draws of many chains with records of their transitions, in memory or on disk.

Axes are `(chain, draw, *event)`. A draw is the last of `thin` transitions. Each transition was either accepted,
rejected by the uniform number, rejected because a value was not finite, or rejected because the candidate was outside
the support.
"""

import hashlib
import html
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.files import naming, require_file, write_bytes
from scoremh.sampling.store import COUNTS, Block, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree

    from scoremh.evaluation import Evaluation

FILE = "a file written by Chains.save"
RECORDED = ("draws", "acceptance_prob", "accepted", "nonfinite", "outside")
KEPT = ("thin", *COUNTS[1:], "description", "columns")
CHECKSUM = b"scoremh sha256 "  # before the checksum; both follow the end of the NetCDF file, which readers ignore
SHOWN_COLUMNS = 8  # number of coordinates shown in a notebook


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of many chains, with a record of every transition; returned by `sample`.

    Args:
        draws: Kept positions, `(chain, draw, *event)`.
        acceptance_prob: Mean acceptance probability a(x', x) over the transitions of a draw.
        accepted: Number of accepted transitions of a draw.
        nonfinite: Number of transitions rejected because the candidate, its score or its ratio was not finite, or
            because a Hamiltonian trajectory diverged.
        outside: Number of transitions rejected because p is 0 at the candidate.
        thin: Number of transitions per draw.
        score_calls: Number of points at which the score was evaluated, over all chains, including warm-up.
        moves: Number of accepted moves, over all chains, including warm-up.
        factors: Number of factors drawn by a random acceptance rule, over all chains, including warm-up.
        clipped: Number of factors that were clipped to their bound; such a decision uses a wrong ratio.
        groups: Number of groups of moves that were decided together (`grouped`), over all chains, including warm-up.
        rejected_groups: Number of rejected groups: errors of the moves, or of the start of the chains, corrected.
        description: Text that describes the kernel.
        columns: Names of the coordinates of an event; empty if they have none.
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
    groups: int = 0
    rejected_groups: int = 0
    description: str = "a kernel"
    columns: tuple[str, ...] = ()

    @property
    def rejected(self) -> Int[Tensor, "chain draw"]:
        """Number of transitions of a draw that proposed a valid candidate and rejected it."""
        return self.thin - self.accepted - self.nonfinite - self.outside

    @property
    def diverging(self) -> Bool[Tensor, "chain draw"]:
        """Which draws had a transition with `nonfinite` above 0; the name is ArviZ's."""
        return self.nonfinite > 0

    @property
    def acceptance_rate(self) -> float:
        """Fraction of the recorded transitions that were accepted."""
        return self.total("accepted") / (self.shape[0] * self.shape[1]) / self.thin

    def total(self, name: str) -> int:
        """Return the sum of a count over all chains and draws.

        Args:
            name: "accepted", "nonfinite" or "outside".
        """
        return int(getattr(self, name).sum())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the draws, `(chain, draw, *event)`."""
        return tuple(self.draws.shape)

    def between(self, first: int, last: int) -> "Chains":
        """Return the draws `first` to `last - 1` of every chain, in memory.

        Args:
            first: Number of the first draw.
            last: Number of the draw after the last.
        """
        parts = {name: getattr(self, name)[:, first:last] for name in RECORDED}
        return self.with_records(parts)

    def with_records(self, records: Mapping[str, Any]) -> "Chains":
        """Return chains with these records and the same counts.

        Args:
            records: Tensors by the name of the record.
        """
        kept: dict[str, Any] = {name: getattr(self, name) for name in KEPT}
        return Chains(**records, **kept)

    @property
    def last(self) -> Float[Tensor, "chain *event"]:
        """The last draw of every chain."""
        return self.draws[:, -1]

    def __repr__(self) -> str:
        """Show the shape, the acceptance rate and the cost."""
        (chains, draws, *event), diverging, outside = self.shape, self.total("nonfinite"), self.total("outside")
        cost = f"{self.score_calls / self.moves:.3g}" if self.moves else "no"
        lost = f", {diverging} diverging" if diverging else ""
        lost += f", {outside} outside the support" if outside else ""
        lost += f", clipped {self.clipped / self.factors:.2%} of {self.factors:,} factors" if self.factors else ""
        lost += f", {self.rejected_groups:,} of {self.groups:,} groups rejected" if self.groups else ""
        return (
            f"Chains({chains} chains x {draws} draws of {tuple(event)}, {self.description}: "
            f"acceptance {self.acceptance_rate:.3f}{lost}, {cost} score calls per accepted move)"
        )

    def _repr_html_(self) -> str:
        """Return shape, acceptance rate, cost, and mean and sd of the first coordinates, as HTML for a notebook."""
        flat = self.draws.detach().flatten(2)[..., :SHOWN_COLUMNS].double()
        rows = "".join(
            f"<tr><td>x[{i}]</td><td>{float(x.mean()):.3g}</td><td>{float(x.std()):.3g}</td></tr>"
            for i, x in enumerate(flat.unbind(-1))
        )
        head = "<thead><tr><th>coordinate</th><th>mean</th><th>sd</th></tr></thead>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}<tbody>{rows}</tbody></table>"

    def evaluate(
        self,
        reference: Float[Tensor, "row *event"],
        *,
        points: int = 1000,
        seed: int = 0,
        columns: Sequence[str] = (),
        progress: bool = False,
    ) -> "Evaluation":
        """Compare the last draws with held-out rows, and return distances, their floors and a p-value.

        Args:
            reference: Rows to compare with, which no model was trained on.
            points: Largest number of points to compare; the floor takes twice as many rows of the reference.
            seed: Random seed; the same seed gives the same numbers.
            columns: Names of the coordinates of an event; x0, x1, ... if empty.
            progress: Show a progress bar.
        """
        from scoremh import evaluation

        options: dict[str, Any] = {"points": points, "seed": seed, "columns": columns, "progress": progress}
        return evaluation.evaluate(self.last, reference, **options)

    def report(self, path: str | Path, reference: Float[Tensor, "row *event"] | None = None) -> None:
        """Write an HTML page with draws, traces, acceptance rates and warnings; needs the extra `report`.

        Args:
            path: HTML file to write.
            reference: Rows to compare the draws with; None for a page without a comparison.
        """
        from scoremh import report

        report.write(report.chain_contents(self, reference), path)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Return a figure with draws, traces and ranks of the first two coordinates; needs the extra `report`.

        Args:
            path: Image file to write the figure to; None to write no file.
        """
        from scoremh.report import images

        figure = images.chain_figure(self)
        if path is not None:
            images.save_figure(figure, Path(path))
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
        counts = {name: getattr(self, name) for name in KEPT if name not in ("thin", "description", "columns")}
        attrs = attributes(self.description, self.thin) | counts
        groups = {"posterior": {"x": _array(self.draws)}, "sample_stats": stats}
        named = self.columns and self.draws.ndim == 3
        axes = {"coords": {"column": list(self.columns)}, "dims": {"x": ["column"]}}
        names: dict[str, Any] = axes if named else {}
        return arviz_base.from_dict(
            groups, attrs={"posterior": attrs}, check_conventions=False, **names
        )  # more chains than draws are usual here

    def save(self, path: str | Path) -> None:
        """Write a NetCDF file that ArviZ reads, with a checksum after its end."""
        # Built in memory: if a disk is full, the HDF5 library ends the process instead of raising an error.
        dask = sys.modules.get("dask")  # if a cluster is in use, xarray would request a lock from it
        with nullcontext() if dask is None else dask.config.set(scheduler="synchronous"):
            raw = bytes(self.to_arviz().to_netcdf(engine="h5netcdf"))
        write_bytes(Path(path), raw + CHECKSUM + hashlib.sha256(raw).hexdigest().encode())

    @classmethod
    def load(cls, path: str | Path) -> "Chains":
        """Read a file written by `save`, or open the folder of `sample(..., store=folder)`, even during the run.

        Args:
            path: File or folder; a damaged file, or one from another library, raises an error. Draws in a folder stay
                on disk and are read on access. An unfinished run has the draws that all of its chains have made.
        """
        if Path(path).is_dir():
            return StoredChains.open(Path(path))
        raw, fix = _checked(Path(path)), "Sample again."
        import xarray

        with naming(path, FILE, fix), xarray.open_datatree(io.BytesIO(raw), engine="h5netcdf") as tree:
            attrs, stats = tree["posterior"].attrs, tree["sample_stats"].data_vars
            names = ("acceptance_rate", "accepted", "nonfinite", "outside_support")
            tensors: list[Any] = [torch.from_numpy(stats[name].to_numpy()) for name in names]
            numbers: dict[str, Any] = {name: int(attrs[name]) for name in ("thin", *COUNTS[1:])}
            draws = torch.from_numpy(tree["posterior"]["x"].to_numpy())
            columns = tree["posterior"].coords["column"].to_numpy() if "column" in tree["posterior"].coords else ()
            numbers |= {"description": str(attrs["description"]), "columns": tuple(map(str, columns))}
            return cls(draws, *tensors, **numbers)


def attributes(description: str, thin: int) -> dict[str, object]:
    """Return the attributes of the group `posterior`: the library, the kernel and the thinning."""
    library = {"inference_library": "scoremh", "inference_library_version": version("scoremh")}
    return library | {"thin": thin, "description": description}


def _checked(path: Path) -> bytes:
    """Return the NetCDF part of a file after verifying its checksum: the HDF5 library is unsafe with damaged files."""
    require_file(path)
    if not path.is_file():
        raise FileNotFoundError(checks.message(FILE, f"{path}, which does not exist", "Check the path."))
    raw = path.read_bytes()
    raw, checksum = raw[: -len(CHECKSUM) - 64], raw[-len(CHECKSUM) - 64 :]
    if not checksum.startswith(CHECKSUM):
        got = f"{path}, which is damaged or from another library"
        raise ValueError(checks.message(FILE, got, "Sample again, or read it with xarray.open_datatree."))
    if checksum[len(CHECKSUM) :] != hashlib.sha256(raw).hexdigest().encode():
        raise ValueError(checks.message(FILE, f"{path}, which is damaged", "Sample again."))
    return raw


def _array(x: Tensor) -> np.ndarray:
    """Return a NumPy array; bfloat16 becomes float32, since NumPy has no bfloat16."""
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()


class StoredChains(Chains):
    """Chains of a stored run, which stay on disk.

    `draws` and the other records read the whole run at every access. Keep the result, or use `last` or
    `between(first, last)`, which read only the chunks that they need.
    """

    def __new__(cls, run: Store | None = None, *_: Any, **fields: Any) -> Any:
        """Return chains in memory if `dataclasses.replace` passes records instead of a run."""
        return super().__new__(cls) if run is not None else Chains(**fields)

    def __init__(self, run: Store, counts: Mapping[str, int], kept: int | None = None) -> None:
        """Open the chains of a run with these counts; `kept` draws of each chain are available, all if None."""
        own = {"thin": run.header["thin"], "description": run.header["kernel"], **counts}
        kept = run.layout.draws if kept is None else kept
        for name, value in {**own, "_run": run, "_kept": kept}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def open(cls, folder: Path) -> "StoredChains":
        """Open the run in a folder, with the draws that all chains have made."""
        run = Store.open(folder)
        found = [run.block(number).load() for number in range(len(run.seeds))]
        header, done = run.header, [0 if one is None else one[0].done for one in found]
        kept = max(0, min(done) - header["burn_in"]) // header["thin"] if "thin" in header else 0
        if kept == 0:
            fix = "Wait until all blocks of chains have draws, or run sample with this store again."
            raise ValueError(checks.message(f"{folder} to hold draws of all chains", "none yet", fix))
        states = [one[0] for one in found if one is not None]
        return cls(run, {name: sum(getattr(state, name) for state in states) for name in COUNTS[1:]}, kept)

    _run: Store
    _kept: int

    @property
    def draws(self) -> Float[Tensor, "chain draw *event"]:
        """The kept positions, read from disk."""
        return self._read("draws", 0, self._kept)

    @property
    def acceptance_prob(self) -> Float[Tensor, "chain draw"]:
        """Mean acceptance probability over the transitions of a draw, read from disk."""
        return self._read("acceptance_prob", 0, self._kept)

    @property
    def accepted(self) -> Int[Tensor, "chain draw"]:
        """Number of accepted transitions of a draw, read from disk."""
        return self._read("accepted", 0, self._kept)

    @property
    def nonfinite(self) -> Int[Tensor, "chain draw"]:
        """Number of transitions rejected because a value was not finite, read from disk."""
        return self._read("nonfinite", 0, self._kept)

    @property
    def outside(self) -> Int[Tensor, "chain draw"]:
        """Number of transitions rejected because p is 0 at the candidate, read from disk."""
        return self._read("outside", 0, self._kept)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the draws, `(chain, draw, *event)`."""
        layout = self._run.layout
        return (layout.chains, self._kept, *layout.arrays["draws"][0])

    @property
    def last(self) -> Float[Tensor, "chain *event"]:
        """The last draw of every chain."""
        return self._read("draws", self._kept - 1, self._kept)[:, 0]

    def total(self, name: str) -> int:
        """Return the sum of a count over all chains and draws, chunk by chunk.

        Args:
            name: "accepted", "nonfinite" or "outside".
        """
        return sum(int(part.sum()) for *_, part in self._parts(name, 0, self._kept))

    def between(self, first: int, last: int) -> Chains:
        """Return the draws `first` to `last - 1` of every chain, in memory.

        Args:
            first: Number of the first draw.
            last: Number of the draw after the last.
        """
        first, last, _ = slice(first, last).indices(self._kept)
        return self.with_records({name: self._read(name, first, max(first, last)) for name in RECORDED})

    def _read(self, name: str, first: int, last: int) -> Tensor:
        """Return a record of some draws of all chains."""
        entry, dtype = self._run.layout.arrays[name]
        rows = torch.empty(self._run.layout.chains, last - first, *entry, dtype=dtype)
        for chain, draw, part in self._parts(name, first, last):
            rows[chain : chain + part.shape[0], draw - first : draw - first + part.shape[1]] = part
        return rows

    def _parts(self, name: str, first: int, last: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the parts of a record, each with its first chain and its first draw."""
        size, step = self._run.layout.block, self._run.layout.chunk_draws
        for number in range(len(self._run.seeds)):
            block, there = self._run.block(number), first
            for start, rows in _block_parts(block, name, step, first, last):
                begin, end = max(first, start), min(last, start + rows.shape[1])
                if begin < end:
                    yield number * size, begin, rows[:, begin - start : end - start]
                    there = end
            if there != last:
                fix = "Open the folder again, or run sample with this store again."
                raise ValueError(checks.message(f"{block.path} to hold {last} draws", f"{there}", fix))


def _block_parts(block: Block, name: str, step: int, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the chunks of a block that contain draws `first` to `last - 1`, then the draws that are in no chunk yet."""
    found = block.load()
    if found is None:
        fix = "Run sample with this store again: these chains start again and make the same draws."
        raise FileNotFoundError(checks.message(f"{block.path}, a part of a run", "no such file", fix))
    for number in range(first // step, min(len(block.chunks), -(-last // step))):
        yield number * step, block.rows(name, number)
    tail = found[1][name]
    if name == "acceptance_prob":
        tail = tail / block.store.header["thin"]
    yield len(block.chunks) * step, tail

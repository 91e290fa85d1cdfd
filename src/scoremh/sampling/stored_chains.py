"""Chains whose draws are on disk: what is asked for is read, checked, and not kept."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks
from scoremh.sampling.chains import RECORDED, Chains
from scoremh.sampling.store import COUNTS, Block, Store


class StoredChains(Chains):
    """What `sample` returns of a stored run. Nothing of the size of the run is in memory.

    `draws` and the other records read all of the run, every time: keep what they return, or ask for `last` or
    `between(first, last)`, which read the chunks that they need.
    """

    def __new__(cls, run: Store | None = None, *_: Any, **fields: Any) -> Any:
        """Return chains in memory where `dataclasses.replace` gives the records themselves."""
        return super().__new__(cls) if run is not None else Chains(**fields)

    def __init__(self, run: Store, counts: Mapping[str, int], kept: int | None = None) -> None:
        """Open the chains of a run.

        Args:
            run: The run on disk.
            counts: Score calls, moves, factors and clipped ones.
            kept: Number of draws that all chains have made; all if None.
        """
        own = {"thin": run.header["thin"], "description": run.header["kernel"], **counts}
        kept = run.layout.draws if kept is None else kept
        for name, value in {**own, "_run": run, "_kept": kept}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def open(cls, folder: Path) -> "StoredChains":
        """Open the run in a folder, as far as all its chains have come.

        Args:
            folder: What `sample` was given as its store.
        """
        run = Store.open(folder)
        found = [run.block(number).load() for number in range(len(run.seeds))]
        header, done = run.header, [0 if one is None else one[0].done for one in found]
        kept = max(0, min(done) - header["warmup"]) // header["thin"] if "thin" in header else 0
        if kept == 0:
            fix = "Wait until all blocks of chains have some, or run sample with this store again."
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
        """How many transitions were accepted, read from disk."""
        return self._read("accepted", 0, self._kept)

    @property
    def nonfinite(self) -> Int[Tensor, "chain draw"]:
        """How many were rejected because a number was not finite, read from disk."""
        return self._read("nonfinite", 0, self._kept)

    @property
    def outside(self) -> Int[Tensor, "chain draw"]:
        """How many were rejected because p is 0 at the candidate, read from disk."""
        return self._read("outside", 0, self._kept)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the draws: chains, draws, and that of an event."""
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
        """Return the draws from one number to before another, in memory.

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
                raise ValueError(checks.message(f"{block.path} to know {last} draws", f"{there}", fix))


def _block_parts(block: Block, name: str, step: int, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the chunks of a block that have draws from `first` to before `last`, and what is not in a chunk yet."""
    found = block.load()
    if found is None:
        fix = "Run sample with this store again: these chains start again, and come to the same draws."
        raise FileNotFoundError(checks.message(f"{block.path}, a part of a run", "no such file", fix))
    for number in range(first // step, min(len(block.chunks), -(-last // step))):
        yield number * step, block.rows(name, number)
    tail = found[1][name]
    if name == "acceptance_prob":
        tail = tail / block.store.header["thin"]
    yield len(block.chunks) * step, tail

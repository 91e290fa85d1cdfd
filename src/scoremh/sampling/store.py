"""What is recorded of a run: a tensor for every field of `Chains`, filled in as the steps are made.

Arrays on disk in the Zarr format, version 3, chunk by chunk.

A chunk holds some draws of one block of chains, as raw little-endian numbers: the format's `bytes` codec alone. What it
takes to write and to read that is a header in JSON and one file per chunk, so that no library stands between a chunk
and its checksum, and none is needed to sample; `xarray` and ArviZ read the arrays through `zarr`. Draws that are not
made yet, and the rest of the last chunk, are NaN, or 0 in arrays of counts.

A run on disk, from which a killed one resumes.

A folder holds

- `run.json`, which says what the run is;
- `chains.zarr`, the draws and records made so far, in chunks of draws of a block of chains: `xarray.open_datatree`
  reads it, also while it grows (`sampling.chunks`);
- `block-NNNNN.safetensors` for every block of chains: all that its next step needs (positions, scores, the generator's
  state), the draws since the last chunk, and the checksums of its chunks in their order.

A file is written whole or not at all, a chunk before the state that knows it; each has a checksum, and is refused where
it is damaged, missing, or of another place or run.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scoremh._shared import checks, files
from scoremh._shared.files import write_bytes
from scoremh._shared.probe import Probe
from scoremh.types import Point, Trace

Records = dict[str, Tensor]


def empty_records(initial: Tensor, draws: int) -> Records:
    """Return zeros for all that `Chains` holds."""
    shape = (len(initial), draws)
    counts = {name: initial.new_zeros(shape, dtype=torch.int32) for name in ("accepted", "nonfinite", "outside")}
    moving = {"draws": initial.new_zeros(*shape, *initial.shape[1:]), "acceptance_prob": initial.new_zeros(shape)}
    return moving | counts


@dataclass
class Recorder:
    """The records of a block of chains: all of them, or those of one chunk of draws, the earlier ones being written.

    Args:
        rows: Records of the draws in memory; they are zeros at first.
        warmup: Transitions that are not recorded.
        thin: Transitions per kept draw.
        write: Called with the number of a chunk and its records when it is full; None where `rows` has all draws.
        first: The draw that `rows` begins with.
    """

    rows: Records
    warmup: int
    thin: int
    write: Callable[[int, Records], None] | None = None
    first: int = 0

    def add(self, trace: Trace, done: int) -> None:
        """Add what happened after so many transitions."""
        origin, steps = done - self.warmup, len(trace.accepted)  # the step of the first kept draw is 0
        start, capacity = max(0, -origin), self.rows["draws"].shape[1]
        while start < steps:
            end = min(steps, (self.first + capacity) * self.thin - origin)
            x, log_accept, accepted = (part[start:end] for part in trace[:3])
            record(self.rows, Trace(x, log_accept, accepted), origin + start - self.first * self.thin, self.thin)
            if self.write is not None and origin + end == (self.first + capacity) * self.thin:
                self.flush()
            start = end

    def flush(self) -> None:
        """Write the draws in memory as a chunk, and begin the next."""
        assert self.write is not None
        capacity = self.rows["draws"].shape[1]
        self.write(self.first // capacity, finished(self.rows, self.thin))
        self.first += capacity
        for rows in self.rows.values():
            rows.zero_()


def finished(records: Records, thin: int) -> Records:
    """Return records with sums over the transitions of a draw made means, where they are means."""
    if "acceptance_prob" not in records:
        return records
    return records | {"acceptance_prob": records["acceptance_prob"] / thin}


def record(records: Records, trace: Trace, first: int, thin: int) -> None:
    """Add a trace to the records.

    Args:
        records: Records of the chains that were traced.
        trace: What happened at every step.
        first: Number of its first step after warm-up; negative within warm-up, which is not recorded.
        thin: Transitions per kept draw.
    """
    skipped = max(0, -first)
    if skipped >= len(trace.accepted):
        return
    x, log_accept, accepted = (part[skipped:] for part in trace[:3])
    values = {"acceptance_prob": log_accept.exp(), "accepted": accepted}
    if not log_accept.isfinite().all():
        outside = log_accept == -math.inf
        values["acceptance_prob"].nan_to_num_(0)
        values |= {"outside": outside, "nonfinite": ~(outside | log_accept.isfinite())}
    first += skipped
    if thin == 1:
        for name, value in values.items():
            records[name][:, first : first + len(x)] = value.T
        records["draws"][:, first : first + len(x)] = x.transpose(0, 1)
        return
    step = torch.arange(first, first + len(x), device=x.device)
    for name, value in values.items():
        records[name].index_add_(1, step // thin, value.T.to(records[name].dtype))
    complete = (step + 1) % thin == 0
    records["draws"][:, (step // thin)[complete]] = x[complete].transpose(0, 1)


DIGEST_BYTES = 32
_TYPES = {
    torch.float16: "float16",
    torch.bfloat16: "float32",  # which the format has not; nothing is lost
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}


@dataclass(frozen=True)
class ChunkedArray:
    """An array `(chain, draw, *rest)` in a folder.

    Args:
        folder: Folder of the array.
        shape: Its shape.
        chunk: Chains and draws of a chunk.
        dtype: Type of its numbers in memory.
    """

    folder: Path
    shape: tuple[int, ...]
    chunk: tuple[int, int]
    dtype: torch.dtype

    @property
    def header(self) -> dict[str, object]:
        """The contents of the array's `zarr.json`."""
        rest = self.shape[2:]
        name = self.folder.name
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": _TYPES[self.dtype],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*self.chunk, *rest]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if self.dtype.is_floating_point else 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "attributes": {},
            "dimension_names": ["chain", "draw", *(f"{name}_dim_{i}" for i in range(len(rest)))],
        }

    def path(self, block: int, number: int) -> Path:
        """Return the file of a chunk."""
        return self.folder.joinpath("c", str(block), str(number), *["0"] * (len(self.shape) - 2))

    def write(self, block: int, number: int, rows: Tensor) -> bytes:
        """Write a chunk, all of it or nothing, and return its checksum."""
        full = np.full((*self.chunk, *self.shape[2:]), math.nan if self.dtype.is_floating_point else 0, self._stored)
        full[: rows.shape[0], : rows.shape[1]] = rows.detach().cpu().to(self._plain).numpy()
        raw, path = full.tobytes(), self.path(block, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, raw)
        return hashlib.sha256(raw).digest()

    def read(self, block: int, number: int, checksum: bytes, fix: str) -> Tensor:
        """Return the rows of a chunk; refuse one that is missing, damaged or another."""
        path = self.path(block, number)
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ValueError(checks.message(f"{path}, a part of a run", "no such file", fix)) from error
        if hashlib.sha256(raw).digest() != checksum:
            raise ValueError(checks.message(f"{path} as it was written", "a damaged or foreign file", fix))
        size = [min(self.chunk[0], self.shape[0] - block * self.chunk[0])]
        size += [min(self.chunk[1], self.shape[1] - number * self.chunk[1])]
        rows = np.frombuffer(raw, self._stored).reshape(*self.chunk, *self.shape[2:])[: size[0], : size[1]]
        return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="))).to(self.dtype)

    @property
    def _stored(self) -> np.dtype:
        return np.dtype(_TYPES[self.dtype]).newbyteorder("<")

    @property
    def _plain(self) -> torch.dtype:
        return torch.float32 if self.dtype == torch.bfloat16 else self.dtype


def group_header(attributes: Mapping[str, object], inner: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the contents of the `zarr.json` of a group, with those of all that is in it where they are given."""
    header: dict[str, object] = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if inner is not None:
        header["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": dict(inner)}
    return header


def require_header(folder: Path, header: Mapping[str, object]) -> None:
    """Write the `zarr.json` of an array or a group where there is none; refuse another one."""
    path, text = folder / "zarr.json", json.dumps(header, indent=1)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    elif path.read_bytes() != text.encode():
        fix = "Delete this file: it is written again, and the draws are kept."
        raise ValueError(checks.message(f"{path} as it was written", "a damaged or edited file", fix))


RUN, ZARR = "run.json", "chains.zarr"
CHUNK_NUMBERS = 262_144  # of the draws in a chunk: 1 MB in float32
FIX = "Delete the folder, and sample again."
# Where an array is in the tree, with the names of ArviZ's data model.
PLACES = {
    "draws": "posterior/x",
    "acceptance_prob": "sample_stats/acceptance_rate",
    "outside": "sample_stats/outside_support",
}


class State(NamedTuple):
    """Where a block of chains is, and what was counted on the way."""

    point: Point
    done: int = 0
    score_calls: int = 0
    moves: int = 0
    factors: int = 0
    clipped: int = 0

    def after(self, point: Point, trace: Trace, moves: int) -> "State":
        """Return the state at a point to which a trace with so many accepted moves has led."""
        return State(
            point,
            self.done + len(trace.accepted),
            self.score_calls + trace.score_calls,
            self.moves + moves,
            self.factors + trace.factors,
            self.clipped + trace.clipped,
        )


COUNTS = State._fields[1:]


@dataclass(frozen=True)
class Layout:
    """How the arrays of a run are divided.

    Args:
        chains: Number of chains.
        draws: Number of draws.
        block: Number of chains in a block; the last may have fewer.
        arrays: From the name of an array to the shape of one entry and its dtype.
    """

    chains: int
    draws: int
    block: int
    arrays: dict[str, tuple[tuple[int, ...], torch.dtype]]

    @classmethod
    def of(cls, rows: Records, chains: int, draws: int, block: int) -> "Layout":
        """Return the layout for records like these."""
        arrays = {name: (tuple(part.shape[2:]), part.dtype) for name, part in rows.items()}
        return cls(chains, draws, block, arrays)

    @property
    def chunk_draws(self) -> int:
        """The number of draws in a chunk."""
        entry = max(1, torch.Size(self.arrays["draws"][0]).numel())
        return max(1, min(self.draws, CHUNK_NUMBERS // (entry * min(self.block, self.chains))))

    def array(self, folder: Path, name: str) -> ChunkedArray:
        """Return an array of a run in a folder."""
        entry, dtype = self.arrays[name]
        chunk = (min(self.block, self.chains), self.chunk_draws)
        place = folder / ZARR / PLACES.get(name, f"sample_stats/{name}")
        return ChunkedArray(place, (self.chains, self.draws, *entry), chunk, dtype)

    def to_json(self) -> dict[str, Any]:
        """Return what `run.json` holds of it."""
        arrays = {name: [list(entry), str(dtype)] for name, (entry, dtype) in self.arrays.items()}
        return {"chains": self.chains, "draws": self.draws, "block": self.block, "arrays": arrays}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Layout":
        """Return what `to_json` wrote."""
        arrays = {
            name: (tuple(entry), getattr(torch, dtype.removeprefix("torch.")))
            for name, (entry, dtype) in fields["arrays"].items()
        }
        return cls(fields["chains"], fields["draws"], fields["block"], arrays)


class Store:
    """A folder that holds one run."""

    def __init__(self, folder: Path, header: Mapping[str, Any], layout: Layout) -> None:
        """Use what is in a folder; `begin` makes sure that it is the right run."""
        self.folder, self.header, self.layout = folder, dict(header), layout
        self.arrays = {name: layout.array(folder, name) for name in layout.arrays}

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        header: dict[str, object],
        probe: Probe,
        layout: Layout,
        *,
        any_seeds: bool,
        attributes: Mapping[str, object] | None = None,
    ) -> "Store":
        """Create a run in the folder, or open the same run there.

        Args:
            folder: Folder of the run; it is there, and nobody else writes to it.
            header: What the run is; another one in the folder is refused.
            probe: What the kernel makes of a few chains.
            layout: How its arrays are divided.
            any_seeds: Whether to take the random seeds of the run that is there.
            attributes: What the group of the draws says of them.
        """
        path = Path(folder) / RUN
        if not path.exists():
            files.write_json(path, header | {"probe": probe.to_json(), "layout": layout.to_json()})
        found = files.read_json(path, FIX)
        same = {key: value for key, value in header.items() if key != "seeds" or not any_seeds}
        files.require_same(same, found, path, "run", "folder")
        with files.naming(path, f"{path} as it was written", FIX):
            known = Probe.from_json(found["probe"])
            files.require_same({"layout": layout.to_json()}, found, path, "run", "folder")
        probe.require_same(
            known,
            f"{path} to hold a run of this target and these parameters",
            "one whose first step differs",
            "Use another folder, or delete this one to begin again.",
        )
        store = cls(Path(folder), found, layout)
        store._require_headers(attributes or {})
        return store

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Open the run in a folder, to read it."""
        path = folder / RUN
        if not path.is_file():
            fix = "Name a folder that sample(..., store=folder) wrote to."
            raise FileNotFoundError(checks.message(f"{folder} to hold a run", f"no {RUN} there", fix))
        found = files.read_json(path, FIX)
        with files.naming(path, f"{path} as it was written", FIX):
            return cls(folder, found, Layout.from_json(found["layout"]))

    @property
    def seeds(self) -> list[int]:
        """The random seeds of the blocks."""
        return list(self.header["seeds"])

    def _require_headers(self, attributes: Mapping[str, object]) -> None:
        """Write the headers of groups and arrays, or refuse those that are there."""
        inner = {"posterior": group_header(attributes), "sample_stats": group_header({})}
        inner |= {str(array.folder.relative_to(self.folder / ZARR)): array.header for array in self.arrays.values()}
        require_header(self.folder / ZARR, group_header({}, inner))
        for place, header in inner.items():
            require_header(self.folder / ZARR / place, header)

    def block(self, number: int) -> "Block":
        """Return a block of chains of the run."""
        return Block(self, number)


class Block:
    """A block of chains of a stored run: its state, and the checksums of its chunks."""

    def __init__(self, store: Store, number: int) -> None:
        self.store, self.number = store, number
        self.path = store.folder / f"block-{number:05}.safetensors"
        self.chunks: list[dict[str, bytes]] = []

    def write_chunk(self, number: int, rows: Records) -> None:
        """Write a chunk of the arrays; it counts once the state is saved."""
        del self.chunks[number:]
        kept = min(self.store.layout.chunk_draws, self.store.layout.draws - number * self.store.layout.chunk_draws)
        parts = {name: part[:, :kept] for name, part in rows.items()}
        self.chunks.append({name: self.store.arrays[name].write(self.number, number, parts[name]) for name in parts})

    def save(self, state: State, generator: torch.Generator, tail: Records) -> None:
        """Write the state, with the records since the last chunk."""
        names = list(self.store.arrays)
        tensors = {f"tail.{name}": rows for name, rows in tail.items()}
        tensors |= {f"point.{name}": part for name, part in state.point._asdict().items() if part is not None}
        joined = b"".join(chunk[name] for chunk in self.chunks for name in names)
        tensors["checksums"] = torch.frombuffer(bytearray(joined), dtype=torch.uint8) if joined else torch.empty(0)
        tensors["generator"] = generator.get_state()
        numbers = {name: str(getattr(state, name)) for name in COUNTS}
        place = {"block": str(self.number), "seed": str(self.store.seeds[self.number])}
        files.save_tensors(self.path, tensors, numbers | place)

    def load(self, generator: torch.Generator | None = None) -> tuple[State, Records] | None:
        """Return the state and the records since the last chunk, and set the generator; None where nothing is saved."""
        if not self.path.exists():
            return None
        fix = f"Delete it: its {self.store.layout.block} chains start again, and come to the same draws."
        with files.reading(self.path, "the state of a block of chains", fix) as (metadata, tensors):
            wanted = {"block": str(self.number), "seed": str(self.store.seeds[self.number])}
            files.require_same(wanted, metadata, self.path, "block", "folder")
            raw, names = tensors["checksums"].to(torch.uint8).numpy().tobytes(), list(self.store.arrays)
            each = [raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)]
            self.chunks = [
                dict(zip(names, each[i : i + len(names)], strict=True)) for i in range(0, len(each), len(names))
            ]
            if generator is not None:
                generator.set_state(tensors["generator"])
            point = {name: tensors[f"point.{name}"] for name in Point._fields if f"point.{name}" in tensors}
            tail = {name: tensors[f"tail.{name}"] for name in names}
            return State(Point(**point), *(int(metadata[name]) for name in COUNTS)), tail

    def save_from(self, records: Records, state: State, generator: torch.Generator) -> None:
        """Write the state, and what is new in records of all draws that are kept in memory."""
        step, draws = self.store.layout.chunk_draws, self.store.layout.draws
        for number in range(len(self.chunks), -(-draws // step) if state.done == draws else state.done // step):
            self.write_chunk(number, {name: rows[:, number * step :][:, :step] for name, rows in records.items()})
        first = len(self.chunks) * step
        self.save(state, generator, {name: rows[:, first : state.done] for name, rows in records.items()})

    def load_into(self, records: Records, generator: torch.Generator) -> State | None:
        """Fill in records of all draws, and the generator; return the state, or None where nothing is saved."""
        found, step = self.load(generator), self.store.layout.chunk_draws
        if found is None:
            return None
        for name, rows in records.items():
            for number in range(len(self.chunks)):
                part = self.rows(name, number)
                rows[:, number * step : number * step + part.shape[1]] = part
            first = len(self.chunks) * step
            rows[:, first : first + found[1][name].shape[1]] = found[1][name]
        return found[0]._replace(point=found[0].point.map(lambda part: part.to(records["draws"].device)))

    def rows(self, name: str, number: int) -> Tensor:
        """Return the rows of a chunk of an array, checked."""
        fix = f"Delete {self.path}: its {self.store.layout.block} chains start again, and come to the same draws."
        return self.store.arrays[name].read(self.number, number, self.chunks[number][name], fix)

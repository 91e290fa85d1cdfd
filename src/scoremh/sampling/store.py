"""The records of a run, in memory and on disk, from which a killed run resumes.

In memory, a record is a tensor for each field of `Chains`, filled in during the run. On disk, the folder of a run holds

- `run.json`, the parameters of the run;
- `chains.zarr`, the draws and records made so far, which `xarray.open_datatree` can read even during the run;
- `block-NNNNN.safetensors` for each block of chains: everything that its next step needs (positions, scores, state of
  the generator), the draws since its last chunk, and the checksums of its chunks.

The arrays are in the Zarr format, version 3. A chunk holds some draws of one block of chains as raw little-endian
numbers (the `bytes` codec alone), so a JSON header and one file per chunk suffice, and sampling needs no library for
them; `xarray` and ArviZ read them through `zarr`. Draws that do not exist yet, and the rest of the last chunk, are NaN,
or 0 in arrays of counts.

A file is written completely or not at all, and a chunk before the state that lists it. Each file has a checksum; a file
that is damaged, missing, or from another place or run raises an error.
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
    """Return zeros for all records of `Chains`."""
    shape = (len(initial), draws)
    counts = {name: initial.new_zeros(shape, dtype=torch.int32) for name in ("accepted", "nonfinite", "outside")}
    moving = {"draws": initial.new_zeros(*shape, *initial.shape[1:]), "acceptance_prob": initial.new_zeros(shape)}
    return moving | counts


@dataclass
class Recorder:
    """Records the transitions of a block of chains, either all in memory or chunk by chunk."""

    rows: Records
    """Records in memory, zeros at first."""
    burn_in: int
    thin: int
    write: Callable[[int, Records], None] | None = None
    """Called with the number and the records of each full chunk; None if `rows` has room for all draws."""
    first: int = 0
    """Number of the first draw in `rows`."""

    def add(self, trace: Trace, done: int) -> None:
        """Add a trace that begins after `done` transitions."""
        origin, steps = done - self.burn_in, len(trace.accepted)  # the step of the first kept draw is 0
        start, capacity = max(0, -origin), self.rows["draws"].shape[1]
        while start < steps:
            end = min(steps, (self.first + capacity) * self.thin - origin)
            x, log_accept, accepted = (part[start:end] for part in trace[:3])
            record(self.rows, Trace(x, log_accept, accepted), origin + start - self.first * self.thin, self.thin)
            if self.write is not None and origin + end == (self.first + capacity) * self.thin:
                self.flush()
            start = end

    def flush(self) -> None:
        """Write the draws in memory as a chunk, and begin the next chunk."""
        assert self.write is not None
        capacity = self.rows["draws"].shape[1]
        self.write(self.first // capacity, finished(self.rows, self.thin))
        self.first += capacity
        for rows in self.rows.values():
            rows.zero_()


def finished(records: Records, thin: int) -> Records:
    """Return the records with the acceptance probability as a mean over `thin` transitions, not as a sum."""
    if "acceptance_prob" not in records:
        return records
    return records | {"acceptance_prob": records["acceptance_prob"] / thin}


def record(records: Records, trace: Trace, first: int, thin: int) -> None:
    """Add a trace to the records; `first` is its first step, counted from the end of warm-up, so negative before that.

    Warm-up is not recorded.
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
    torch.bfloat16: "float32",  # the format has no bfloat16; nothing is lost
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}


@dataclass(frozen=True)
class ChunkedArray:
    """An array `(chain, draw, *rest)` in a folder."""

    folder: Path
    shape: tuple[int, ...]
    chunk: tuple[int, int]
    """Number of chains and of draws in a chunk."""
    dtype: torch.dtype
    """Type of its numbers in memory."""

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
        """Write a chunk, completely or not at all, and return its checksum."""
        full = np.full((*self.chunk, *self.shape[2:]), math.nan if self.dtype.is_floating_point else 0, self._stored)
        full[: rows.shape[0], : rows.shape[1]] = rows.detach().cpu().to(self._plain).numpy()
        raw, path = full.tobytes(), self.path(block, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, raw)
        return hashlib.sha256(raw).digest()

    def read(self, block: int, number: int, checksum: bytes, fix: str) -> Tensor:
        """Return the rows of a chunk; raise an error if it is missing or its checksum differs."""
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
    """Return the contents of the `zarr.json` of a group, with the headers of its members if `inner` is given."""
    header: dict[str, object] = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if inner is not None:
        header["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": dict(inner)}
    return header


def require_header(folder: Path, header: Mapping[str, object]) -> None:
    """Write the `zarr.json` of an array or a group if there is none; raise an error if there is a different one."""
    path, text = folder / "zarr.json", json.dumps(header, indent=1)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    elif path.read_bytes() != text.encode():
        fix = "Delete this file: it will be written again, and the draws are kept."
        raise ValueError(checks.message(f"{path} as it was written", "a damaged or edited file", fix))


RUN, ZARR = "run.json", "chains.zarr"
CHUNK_NUMBERS = 262_144  # numbers in a chunk of draws: 1 MB in float32
FIX = "Delete the folder, and sample again."
# Path of an array in the tree, with the names of ArviZ's data model.
PLACES = {
    "draws": "posterior/x",
    "acceptance_prob": "sample_stats/acceptance_rate",
    "outside": "sample_stats/outside_support",
}


class State(NamedTuple):
    """The points of a block of chains, the number of transitions done, and the counts so far."""

    point: Point
    done: int = 0
    score_calls: int = 0
    moves: int = 0
    factors: int = 0
    clipped: int = 0
    groups: int = 0
    rejected_groups: int = 0

    def after(self, point: Point, trace: Trace, moves: int) -> "State":
        """Return the state after a trace that ended at `point`, with this number of accepted moves."""
        return State(
            point,
            self.done + len(trace.accepted),
            self.score_calls + trace.score_calls,
            self.moves + moves,
            self.factors + trace.factors,
            self.clipped + trace.clipped,
            self.groups + trace.groups,
            self.rejected_groups + trace.rejected_groups,
        )


COUNTS = State._fields[1:]


@dataclass(frozen=True)
class Layout:
    """The division of the arrays of a run into blocks and chunks."""

    chains: int
    draws: int
    block: int
    """Number of chains in a block; the last block may have fewer."""
    arrays: dict[str, tuple[tuple[int, ...], torch.dtype]]
    """Shape of one entry and dtype, by the name of the array."""

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
        """Return the layout for `run.json`."""
        arrays = {name: [list(entry), str(dtype)] for name, (entry, dtype) in self.arrays.items()}
        return {"chains": self.chains, "draws": self.draws, "block": self.block, "arrays": arrays}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Layout":
        """Return the layout that `to_json` wrote."""
        arrays = {
            name: (tuple(entry), getattr(torch, dtype.removeprefix("torch.")))
            for name, (entry, dtype) in fields["arrays"].items()
        }
        return cls(fields["chains"], fields["draws"], fields["block"], arrays)


class Store:
    """A folder that holds one run."""

    def __init__(self, folder: Path, header: Mapping[str, Any], layout: Layout) -> None:
        """Use a folder without checking it; `begin` and `open` do."""
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
        """Create a run in an existing folder that this process has locked, or open the same run there.

        Another run in the folder raises an error: one with another header, another layout, or another result `probe` of
        a step. `any_seeds` accepts the random seeds of the existing run. `attributes` are for the group `posterior`.
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
            "a run whose first step differs",
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
            fix = "Pass a folder that sample(..., store=folder) wrote to."
            raise FileNotFoundError(checks.message(f"{folder} to hold a run", f"no {RUN} there", fix))
        found = files.read_json(path, FIX)
        with files.naming(path, f"{path} as it was written", FIX):
            return cls(folder, found, Layout.from_json(found["layout"]))

    @property
    def seeds(self) -> list[int]:
        """The random seeds of the blocks."""
        return list(self.header["seeds"])

    def _require_headers(self, attributes: Mapping[str, object]) -> None:
        """Write the headers of groups and arrays, or check the existing ones."""
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
        """Write a chunk of each array; it belongs to the run once the state is saved."""
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
        """Return the state and the records since the last chunk, and set the generator; None if no state is saved."""
        if not self.path.exists():
            return None
        fix = f"Delete it: its {self.store.layout.block} chains start again and make the same draws."
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
        """Write the state, and the part of `records` (all draws, in memory) that is not written yet."""
        step, draws = self.store.layout.chunk_draws, self.store.layout.draws
        for number in range(len(self.chunks), -(-draws // step) if state.done == draws else state.done // step):
            self.write_chunk(number, {name: rows[:, number * step :][:, :step] for name, rows in records.items()})
        first = len(self.chunks) * step
        self.save(state, generator, {name: rows[:, first : state.done] for name, rows in records.items()})

    def load_into(self, records: Records, generator: torch.Generator) -> State | None:
        """Fill in `records`, which hold all draws, and set the generator; return the state, None if none is saved."""
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
        """Return the rows of a chunk of an array, after verifying its checksum."""
        fix = f"Delete {self.path}: its {self.store.layout.block} chains start again and make the same draws."
        return self.store.arrays[name].read(self.number, number, self.chunks[number][name], fix)

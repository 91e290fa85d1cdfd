"""Arrays on disk in the Zarr format, version 3, chunk by chunk.

A chunk holds some draws of one block of chains, as raw little-endian numbers: the format's `bytes` codec alone. What it
takes to write and to read that is a header in JSON and one file per chunk, so that no library stands between a chunk
and its checksum, and none is needed to sample; `xarray` and ArviZ read the arrays through `zarr`. Draws that are not
made yet, and the rest of the last chunk, are NaN, or 0 in arrays of counts.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.files import write_bytes

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

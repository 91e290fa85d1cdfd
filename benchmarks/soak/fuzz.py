"""Files full of noise for every loader: no crash, no hang, only the library's own errors, with the file's name.

Half of the files are random bytes, or right ones with random edits; the others are edited and given a right checksum,
as somebody would who forges a file, so that what is behind the checksum is tried as well. A forged NetCDF file is not
tried: behind its checksum stands the HDF5 library, which is not safe against forged files.
"""

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.soak import damage
from scoremh import AcceptanceFit, Chains, ScoreFit, ScoreMH, datasets
from scoremh._shared import checks
from scoremh._shared.files import BLANK, sealed

DEADLINE_MS = 10_000
ALLOWED = (ValueError, TypeError, OSError)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([-1, 0, 2**31, 2**63, 10**30, 1e300]))
TEXTS = st.text(st.characters(exclude_characters="{"), max_size=8)  # a brace would be opened as JSON by the next edit
EMPTY: st.SearchStrategy[dict[str, Any]] = st.builds(dict)  # a new one each time: the next edit may write into it
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.lists(NUMBERS, max_size=4), EMPTY)


@dataclass(frozen=True)
class Loader:
    """How files of a kind are written and read.

    Args:
        seeds: Right files to edit: the folder that has them, and their names in it.
        name: The file to put noise into.
        load: Reads from a folder.
        header: Whether it has a header in JSON with a checksum: "json", "safetensors", or "" for none.
    """

    seeds: Callable[[], dict[str, bytes]]
    name: str
    load: Callable[[Path], object]
    header: str = ""


def _files(case: str) -> Callable[[], dict[str, bytes]]:
    @cache
    def written() -> dict[str, bytes]:
        with TemporaryDirectory() as folder:
            damage.CASES[case].write(Path(folder))
            found = [path for path in Path(folder).rglob("*") if path.is_file()]
            return {str(path.relative_to(folder)): path.read_bytes() for path in found}

    return written


def _one(name: str, raw: bytes) -> Callable[[], dict[str, bytes]]:
    return lambda: {name: raw}


def _table() -> tuple[bytes, bytes, bytes, bytes]:
    x = np.random.default_rng(0).normal(size=(6, 2))
    frame = pd.DataFrame(x, columns=["x", "y"])
    np.save(npy := io.BytesIO(), x)
    np.savez_compressed(npz := io.BytesIO(), x=x)
    return frame.to_csv(index=False).encode(), npy.getvalue(), npz.getvalue(), frame.to_parquet()


CSV, NPY, NPZ, PARQUET = _table()


def _load(name: str) -> Callable[[Path], object]:
    return lambda folder: datasets.load(folder / name)


def _read(case: str) -> Callable[[Path], object]:
    return damage.CASES[case].read


LOADERS = {
    "csv": Loader(_one("a.csv", CSV), "a.csv", _load("a.csv")),
    "npy": Loader(_one("a.npy", NPY), "a.npy", _load("a.npy")),
    "npz": Loader(_one("a.npz", NPZ), "a.npz", _load("a.npz")),
    "parquet": Loader(_one("a.parquet", PARQUET), "a.parquet", _load("a.parquet")),
    "Chains": Loader(_files("chains"), "chains.nc", lambda folder: Chains.load(folder / "chains.nc")),
    "ScoreFit": Loader(
        _files("saved score"), "score.safetensors", lambda p: ScoreFit.load(p / "score.safetensors"), "safetensors"
    ),
    "AcceptanceFit": Loader(
        _files("saved acceptance"),
        "acceptance.safetensors",
        lambda folder: AcceptanceFit.load(folder / "acceptance.safetensors"),
        "safetensors",
    ),
    "checkpoint": Loader(_files("checkpoint"), "training.safetensors", _read("checkpoint"), "safetensors"),
    "store": Loader(_files("finished store"), "run/run.json", _read("finished store"), "json"),
    "store's state": Loader(
        _files("store of a killed run"), "run/block-00000.safetensors", _read("store of a killed run"), "safetensors"
    ),
    "run folder": Loader(_files("run folder"), "model/config.json", lambda p: ScoreMH.load(p / "model"), "json"),
}


class Edit(NamedTuple):
    """New bytes in the place of old ones. Files are drawn as edits, since hypothesis keeps all that it has drawn."""

    place: int
    length: int
    new: bytes

    def of(self, raw: bytes) -> bytes:
        """Return a file that is edited."""
        return raw[: self.place] + self.new + raw[self.place + self.length :]


@st.composite
def noise(draw: st.DrawFn, loader: Loader) -> list[Edit]:
    """Draw what makes noise of a file."""
    raw, edits = loader.seeds()[loader.name], list[Edit]()
    if loader.header and draw(st.booleans()):
        return [draw(forged(raw, loader.header))]
    if draw(st.integers(0, 4)) == 0:
        return [Edit(0, len(raw), draw(st.binary(max_size=200)))]
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(raw) - 1)))
        length = draw(st.sampled_from([0, 1, 1, 4, 64]))
        edits.append(Edit(place, length, draw(st.binary(max_size=8)) * draw(st.sampled_from([1, 1, 50]))))
        raw = edits[-1].of(raw)
    return edits


@st.composite
def forged(draw: st.DrawFn, raw: bytes, kind: str) -> Edit:
    """Draw an edited header, with a right checksum."""
    size = int.from_bytes(raw[:8], "little") if kind == "safetensors" else 0
    head, body = (raw[8 : 8 + size], raw[8 + size :]) if size else (raw, b"")
    header = json.loads(head)
    for _ in range(draw(st.integers(1, 3))):
        _edit(draw, header, 0)
    place = header if kind == "json" else header.setdefault("__metadata__", {})
    if isinstance(place, dict):
        place["sha256"] = BLANK
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + body if size else text
    whole = bytes(sealed(whole)) if re.search(rb'"sha256": ?"0{64}"', whole) else whole
    return Edit(0, len(raw) - len(body), whole[: len(whole) - len(body)])


def _edit(draw: st.DrawFn, part: Any, depth: int) -> None:
    """Replace, remove or add a value somewhere in a JSON value; text that is JSON itself is opened."""
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if not keys:
        return
    key = draw(st.sampled_from(keys))
    if isinstance(part[key], dict | list) and part[key] and depth < 6 and draw(st.integers(0, 3)):
        _edit(draw, part[key], depth + 1)
    elif isinstance(part[key], str) and part[key].startswith("{") and draw(st.integers(0, 5)):
        inner = json.loads(part[key])
        _edit(draw, inner, depth + 1)
        part[key] = json.dumps(inner)
    elif isinstance(part, dict) and draw(st.integers(0, 3)) == 0:
        del part[key]
    else:
        part[key] = draw(VALUES)


def fuzz(name: str, executions: int, folder: Path) -> int:
    """Give a loader files of noise; return the number of files with our error. Other errors are raised."""
    loader, refused, place = LOADERS[name], 0, folder / "fuzzed"
    loader.seeds()  # written before hypothesis looks: what writes them may use random names
    options = {"deadline": DEADLINE_MS, "database": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=executions, derandomize=True, **options)  # type: ignore[arg-type]
    @given(noise(loader))
    def run(edits: list[Edit]) -> None:
        nonlocal refused
        for path, old in loader.seeds().items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(old)
        (place / loader.name).write_bytes(reduce(lambda raw, edit: edit.of(raw), edits, loader.seeds()[loader.name]))
        try:
            loader.load(place)
        except ALLOWED as error:
            refused += 1
            if str(place) not in str(error):
                raise AssertionError(f"an error without the name of the file: {error!r}") from error

    run()
    return refused


def tried(name: str, executions: int, folder: Path) -> tuple[int, str]:
    """Give a loader files of noise; return the number of files with our error, and the first other error."""
    try:
        return fuzz(name, executions, folder), ""
    except Exception as error:
        return 0, checks.short(error)

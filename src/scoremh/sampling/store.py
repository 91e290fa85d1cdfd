"""A run on disk, from which a killed one resumes.

A folder holds `run.json`, which says what the run is, and for every block of chains numbered parts: the draws made
since the part before, and all that the next step needs (positions, scores, the generator's state). A part is written
whole or not at all.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared.files import reading, replacing, require_same, save_tensors
from scoremh._shared.probe import Probe
from scoremh.types import Point, Trace


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


class Store:
    """A folder that holds one run."""

    def __init__(self, folder: str | Path, header: dict[str, object], probe: Probe, *, any_seeds: bool) -> None:
        """Create a run in the folder, or open the same run there.

        Args:
            folder: Folder of the run; it is created where it does not exist.
            header: What the run is; another one in the folder is refused.
            probe: What the kernel makes of a few chains.
            any_seeds: Whether to take the random seeds of the run that is there.
        """
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "run.json"
        if not path.exists():
            with replacing(path) as partial:
                partial.write_text(json.dumps(header | {"probe": probe.to_json()}, indent=2))
        found = json.loads(path.read_text())
        same = {key: value for key, value in header.items() if key != "seeds" or not any_seeds}
        require_same(same, found, path, "run", "folder")
        probe.require_same(
            Probe.from_json(found["probe"]),
            f"{path} to hold a run of this target and these parameters",
            "one whose first step differs",
            "Use another folder, or delete this one to begin again.",
        )
        self.seeds: list[int] = found["seeds"]

    def _parts(self, block: int) -> list[Path]:
        return sorted(self.folder.glob(f"block-{block:05}-part-*.safetensors"))

    def save(
        self, block: int, state: State, generator: torch.Generator, first: int, records: dict[str, Tensor]
    ) -> None:
        """Add a part: the records of the draws from `first` on, and the state after them."""
        tensors = {f"record.{name}": rows for name, rows in records.items()}
        tensors |= {f"point.{name}": part for name, part in state.point._asdict().items() if part is not None}
        tensors["generator"] = generator.get_state()
        numbers = {name: str(getattr(state, name)) for name in COUNTS} | {"first": str(first)}
        path = self.folder / f"block-{block:05}-part-{len(self._parts(block)):06}.safetensors"
        save_tensors(path, tensors, numbers)

    def load(self, block: int, generator: torch.Generator, records: dict[str, Tensor]) -> State | None:
        """Fill in the records and the generator from all parts of a block, and return the state after the last."""
        state = None
        for path in self._parts(block):
            fix = "Delete this part and the later ones of its block: the run resumes from the part before."
            with reading(path, "a part of a run", fix) as part:
                metadata, names = part.metadata(), set(part.keys())
                first = int(metadata["first"])
                for name, rows in records.items():
                    values = part.get_tensor(f"record.{name}")
                    rows[:, first : first + values.shape[1]] = values
                fields = {name: f"point.{name}" for name in Point._fields if f"point.{name}" in names}
                like = records["draws"]
                point = Point(**{name: part.get_tensor(key).to(like.device) for name, key in fields.items()})
                generator.set_state(part.get_tensor("generator"))
                state = State(point, *(int(metadata[name]) for name in COUNTS))
        return state

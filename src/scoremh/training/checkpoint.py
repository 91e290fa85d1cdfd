"""Checkpoints: a training in a file, from which the same training is resumed."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from scoremh._shared.files import naming, reading, require_file, require_same, save_tensors
from scoremh._shared.probe import Probe
from scoremh.training.state import State

NUMBERS: dict[str, type] = {
    **dict.fromkeys(("seed", "step", "best_step", "waited"), int),
    **{"least": list, "seconds": float, "history": dict},
}
EXPECTED, FIX = "a checkpoint of a training", "Name another file, or delete this one to train from the beginning."


@dataclass
class Checkpoint:
    """A file that holds one training.

    Args:
        path: The file; None writes nothing.
        header: What the training is; that of another one is refused.
        probe: Numbers that its loss answers; other ones are refused.
        any_seed: Whether to take the seed of the training that is in the file.
    """

    path: Path | None
    header: dict[str, Any]
    probe: Probe
    any_seed: bool
    written: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        """Refuse a folder."""
        if self.path is not None:
            require_file(self.path)

    def save(self, state: State, *, seconds: float = 0.0) -> None:
        """Write the state of a training, if this many seconds have passed since the last time."""
        if self.path is None or time.monotonic() - self.written < seconds:
            return
        flat = {f"{part}.{name}": t for part, tensors in _tensors(state).items() for name, t in tensors.items()}
        numbers = {name: getattr(state, name) for name in NUMBERS}
        parts = {"header": self.header, "numbers": numbers, "probe": self.probe.to_json()}
        save_tensors(self.path, flat, {name: json.dumps(part) for name, part in parts.items()})
        self.written = time.monotonic()

    def resume(self, state: State) -> None:
        """Load the same training from the file into a state, where there is one."""
        if self.path is None or not self.path.exists():
            return
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in _tensors(state)}
        with reading(self.path, EXPECTED, FIX) as file:
            found, numbers, probe = (json.loads(file.metadata[name]) for name in ("header", "numbers", "probe"))
            for key, tensor in file.tensors.items():
                part, name = key.split(".", 1)
                parts[part][name] = tensor
            known, found["seed"] = Probe.from_json(probe), numbers["seed"]
            _require_numbers(numbers)
        same = {key: value for key, value in self.header.items() if key != "versions"}
        seed = {} if self.any_seed else {"seed": state.seed}
        require_same(same | seed, found, self.path, "training", "file")
        self.probe.require_same(
            known,
            f"{self.path} to hold this training",
            "one whose score, proposal or support answers differently",
            "Use another file, or delete this one to begin again.",
        )
        with naming(self.path, EXPECTED, FIX):
            _restore(state, parts, numbers)


def _require_numbers(numbers: dict[str, Any]) -> None:
    """Refuse numbers of a state that are of another kind."""
    values = [value for name in ("step", "loss", "held_out", "rate") for value in numbers["history"][name]]
    values += numbers["least"]
    if not all(isinstance(numbers[name], kind) for name, kind in NUMBERS.items()) or set(numbers) != set(NUMBERS):
        raise TypeError("numbers of another kind")
    if not all(isinstance(value, float) for value in values):
        raise TypeError("a history that does not consist of numbers")


def _tensors(state: State) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a state, by part."""
    moments = state.optimiser.state_dict()["state"]
    return {
        "net": state.net.state_dict(),
        "average": state.average.state_dict(),
        "best": state.best,
        "adam": {f"{i}.{name}": value for i, values in moments.items() for name, value in values.items()},
        "generator": {"state": state.generator.get_state()},
    }


def _restore(state: State, parts: dict[str, dict[str, Tensor]], numbers: dict[str, Any]) -> None:
    """Load tensors and numbers into a state."""
    state.net.load_state_dict(parts["net"])
    state.average.load_state_dict(parts["average"])
    state.best = parts["best"]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["adam"].items():
        moments.setdefault(int(name.split(".")[0]), {})[name.split(".", 1)[1]] = value
    groups = state.optimiser.state_dict()["param_groups"]
    state.optimiser.load_state_dict({"state": moments, "param_groups": groups})
    state.generator.set_state(parts["generator"]["state"])
    for name, value in numbers.items():
        setattr(state, name, value)

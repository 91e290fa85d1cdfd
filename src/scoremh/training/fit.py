"""What a training returns, in a file and back."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from scoremh import networks
from scoremh._shared import checks
from scoremh._shared.files import naming, reading, save_tensors
from scoremh.training.recipe import Recipe
from scoremh.training.weights_budget import within_budget

Kind = TypeVar("Kind", bound="Fit")


@dataclass(eq=False, repr=False)
class Fit:
    """A trained network, and how it was trained. Printing it shows how long that took, and how well it went.

    Args:
        net: Trained network, without gradients and in evaluation mode.
        history: From "step", "loss", "held_out" and "rate", and the parts of a `DetailedLoss`, to a number per check of
            the held-out loss.
        recipe: How it was trained.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Time it took.
        best: Step whose weights these are.
    """

    own_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a subclass that its file holds as JSON."""

    net: nn.Module
    history: dict[str, list[float]]
    recipe: Recipe
    seed: int
    seconds: float
    best: int

    def __repr__(self) -> str:
        """Show the size of the training and its losses."""
        size = sum(p.numel() for p in self.net.parameters())
        steps, held = int(self.history["step"][-1]), self.history["held_out"]
        stopped = "stopped early" if steps < self.recipe.steps else "ran to the end"
        first, kept = int(self.history["step"][0]), held[self.history["step"].index(self.best)]
        return (
            f"{size:,} weights, {steps:,} steps of {self.recipe.batch} samples in {self.seconds:.0f} s, {stopped}\n"
            f"held-out loss {held[0]:.4g} at step {first:,}, {kept:.4g} at step {self.best:,}, whose weights these are"
        )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whose header describes in JSON what was fitted and how."""
        header = {name: getattr(self, name) for name in ("history", "seed", "seconds", "best", *self.own_fields)}
        header |= {"recipe": asdict(self.recipe), "net": networks.describe(self.net), "versions": versions()}
        weights = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        save_tensors(Path(path), weights | self._tensors(), {f"scoremh.{type(self).__name__}": json.dumps(header)})

    @classmethod
    def load(cls: type[Kind], path: str | Path, net: nn.Module | None = None) -> Kind:
        """Return what `save` wrote; no code in the file is run.

        Args:
            path: The file.
            net: A network like the one that was fitted, where that was not one of `scoremh.networks`.
        """
        fields, tensors = _read(path, cls.__name__, net)
        with naming(path, f"a file that {cls.__name__}.save wrote", "Fit again."):
            return cls._restored(fields, tensors)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a subclass that are no weights."""
        return {}

    @classmethod
    def _restored(cls: type[Kind], fields: dict[str, Any], tensors: Mapping[str, Tensor]) -> Kind:
        """Return a fit of the fields in a file and its tensors that are no weights."""
        return cls(**fields)


def versions() -> dict[str, str]:
    """Return the versions that a file records."""
    return {"python": platform.python_version(), "torch": torch.__version__, "scoremh": version("scoremh")}


def _read(path: str | Path, kind: str, net: nn.Module | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file of this kind of fit holds: fields, and tensors that are no weights."""
    with reading(path, f"a file that {kind}.save wrote", "Name such a file, or fit again.") as (metadata, tensors):
        _require_kind(metadata, path, kind)
        fields = json.loads(metadata[f"scoremh.{kind}"])
        weights = {name.removeprefix("net."): tensors.pop(name) for name in list(tensors) if name.startswith("net.")}
        with within_budget(fields["net"], weights):
            network = networks.build(fields["net"], net, path)
        network.to(next((tensor.dtype for tensor in weights.values() if tensor.is_floating_point()), None))
        _load_weights(network, weights, path)
        del fields["versions"]
        return fields | {"net": network, "recipe": Recipe(**fields["recipe"])}, tensors


def _load_weights(network: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        fix = "Make the network with the arguments it was fitted with."
        got = f"another ({' '.join(str(error).split())})"
        raise ValueError(checks.message(f"a net with the weights of {path}", got, fix)) from error
    network.requires_grad_(False).eval()


def _require_kind(metadata: Mapping[str, str], path: str | Path, kind: str) -> None:
    """Refuse the file of another kind of fit."""
    for name in (key.removeprefix("scoremh.") for key in metadata if key.startswith("scoremh.")):
        if name != kind:
            got = f"{path}, which {name}.save wrote"
            raise ValueError(checks.message(f"a file that {kind}.save wrote", got, f"Use {name}.load."))

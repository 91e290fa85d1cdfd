"""Descriptions of networks as JSON, from which they are built again, so that loading runs no code from the file."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from scoremh._shared import checks
from scoremh.coordinates import Affine, Compose, Coordinates, Sinh, SquareRoot
from scoremh.networks.acceptance import FORMS, AcceptanceMLP, Form, PotentialMLP, ProposalProbe
from scoremh.networks.scores import (
    InCoordinates,
    InputsInCoordinates,
    NoiseConditionalMLP,
    ScoreMLP,
)
from scoremh.networks.unet import UNet

CLASSES = (
    AcceptanceMLP,
    NoiseConditionalMLP,
    PotentialMLP,
    ScoreMLP,
    UNet,
)
PLAIN: dict[str, Any] = {cls.__name__: cls for cls in CLASSES}
WITH_COORDINATES: dict[str, type[InCoordinates | InputsInCoordinates]] = {
    cls.__name__: cls for cls in (InCoordinates, InputsInCoordinates)
}


def describe(net: nn.Module) -> dict[str, Any]:
    """Return a description of a network: its class and arguments, without weights.

    Args:
        net: Network.
    """
    kind = type(net).__name__
    if isinstance(net, InCoordinates | InputsInCoordinates):
        return {"kind": kind, "inside": describe(net.net), "coordinates": describe_coordinates(net.coordinates)}
    if isinstance(net, Form):
        return {"kind": kind, "inside": describe(net.net), "made_for": net.made_for and net.made_for.to_json()}
    return {"kind": kind, "config": net.config if kind in PLAIN else None}


def build(spec: dict[str, Any], inside: nn.Module | None = None, path: str | Path = "a file") -> nn.Module:
    """Return a network from its description; its weights must still be loaded.

    Args:
        spec: Description returned by `describe`.
        inside: Network to use if the description is of a class outside `scoremh.networks`.
        path: File with the description, for errors.
    """
    if spec["kind"] in WITH_COORDINATES:
        coordinates = build_coordinates(spec["coordinates"])
        return WITH_COORDINATES[spec["kind"]](build(spec["inside"], inside, path), coordinates)
    forms = {cls.__name__: cls for cls in FORMS.values()}
    if spec["kind"] in forms:
        made_for = spec["made_for"] and ProposalProbe.from_json(spec["made_for"])
        return forms[spec["kind"]](build(spec["inside"], inside, path), made_for)
    if inside is not None:
        return inside
    if spec["kind"] not in PLAIN:
        fix = f"Pass the network: load(path, net={spec['kind']}(...)); its weights come from the file."
        raise ValueError(
            checks.message(f"a network of scoremh.networks in {path}", f"a network of class {spec['kind']}", fix)
        )
    network: nn.Module = PLAIN[spec["kind"]](**spec["config"] | {"event": tuple(spec["config"]["event"])})
    return network


def describe_coordinates(coordinates: Coordinates) -> dict[str, Any]:
    """Return a description of coordinates: their class and the shapes of their tensors, or their parts if composed."""
    kind = type(coordinates).__name__
    if isinstance(coordinates, Compose):
        parts = {"outer": coordinates.outer, "inner": coordinates.inner}
        return {"kind": kind} | {name: describe_coordinates(part) for name, part in parts.items()}
    return {"kind": kind, "shapes": {name: list(buffer.shape) for name, buffer in coordinates.named_buffers()}}


def build_coordinates(spec: dict[str, Any]) -> Coordinates:
    """Return coordinates from their description; their tensors must still be loaded."""
    if spec["kind"] == "Compose":
        return Compose(build_coordinates(spec["outer"]), build_coordinates(spec["inner"]))
    shapes = spec["shapes"]
    if spec["kind"] == "Affine":
        root = torch.eye(*shapes["root"]) if len(shapes["root"]) == 2 else torch.ones(shapes["root"])
        return Affine(torch.zeros(shapes["mean"]), root)
    if spec["kind"] == "Sinh":
        return Sinh(torch.zeros(shapes["mean"]), torch.ones(shapes["scale"]))
    if spec["kind"] == "SquareRoot":
        return SquareRoot()
    fix = "Load it with the version of scoremh that saved it."
    raise ValueError(checks.message("coordinates of scoremh.coordinates", f"the class {spec['kind']}", fix))

"""A network as JSON and back: what a saved fit says of its network, so that loading runs no code from the file."""

from typing import Any

import torch
from torch import nn

from scoremh._shared import checks
from scoremh.networks.mlp import NoiseConditionalMLP, ScoreMLP
from scoremh.networks.pairs import AcceptanceMLP, Antisymmetric, Form, Free, MadeFor, Potential, PotentialMLP
from scoremh.networks.wrappers import HeavyTailed, StandardInputs, Standardized

PLAIN: dict[str, Any] = {cls.__name__: cls for cls in (AcceptanceMLP, NoiseConditionalMLP, PotentialMLP, ScoreMLP)}
COORDINATES: dict[str, type[Standardized]] = {cls.__name__: cls for cls in (Standardized, StandardInputs)}
FORMS: dict[str, type[Form]] = {cls.__name__: cls for cls in (Antisymmetric, Free, Potential)}


def describe(net: nn.Module) -> dict[str, Any]:
    """Return the kind of a network and the arguments that make one like it, without its weights."""
    kind = type(net).__name__
    if isinstance(net, Standardized):
        shapes = {"event": list(net.mean.shape), "scale": list(net.scale.shape)}
        return {"kind": kind, "inside": describe(net.net), **shapes}
    if isinstance(net, HeavyTailed):
        return {"kind": kind, "inside": describe(net.net), "event": list(net.centre.shape)}
    if isinstance(net, Form):
        return {"kind": kind, "inside": describe(net.net), "made_for": net.made_for and net.made_for._asdict()}
    return {"kind": kind, "config": net.config if kind in PLAIN else None}


def build(spec: dict[str, Any], inside: nn.Module | None = None) -> nn.Module:
    """Make a network of this description, its weights to be loaded.

    Args:
        spec: What `describe` returned.
        inside: Stands for a network that is not one of `scoremh.networks`.
    """
    if spec["kind"] in COORDINATES:
        mean, scale = torch.zeros(spec["event"]), torch.zeros(spec["scale"])
        return COORDINATES[spec["kind"]](build(spec["inside"], inside), mean, scale)
    if spec["kind"] == HeavyTailed.__name__:
        return HeavyTailed(build(spec["inside"], inside), torch.zeros(spec["event"]), torch.ones(spec["event"]))
    if spec["kind"] in FORMS:
        made_for = spec["made_for"] and MadeFor(**spec["made_for"])
        return FORMS[spec["kind"]](build(spec["inside"], inside), made_for)
    if inside is not None:
        return inside
    if spec["kind"] not in PLAIN:
        fix = f"Pass the network: load(path, net={spec['kind']}(...)); its weights come from the file."
        raise ValueError(checks.message("a network of scoremh.networks", f"one of class {spec['kind']}", fix))
    network: nn.Module = PLAIN[spec["kind"]](**spec["config"] | {"event": tuple(spec["config"]["event"])})
    return network

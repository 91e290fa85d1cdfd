"""Adapter for networks of the library diffusers, which reads the scheduler's configuration and imports nothing."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh.diffusion.model import (
    EPSILON,
    VELOCITY,
    X0,
    DiffusionModel,
    Network,
    Settings,
    V,
    built,
    discrete,
    flow_time,
    from_alphas_cumprod,
    from_score,
    log_time,
    preconditioned,
)

PREDICTIONS = {"epsilon": EPSILON, "sample": X0, "v_prediction": V}  # diffusers' names


class Conditional(nn.Module):
    """A network with a class label and guidance; of an output with a learned variance it returns the first half."""

    def __init__(
        self,
        unet: Network,
        class_label: int | None = None,
        guidance_scale: float = 1.0,
        null_label: int | None = None,
        learned_variance: bool = False,
    ) -> None:
        super().__init__()
        if guidance_scale != 1 and (class_label is None or null_label is None):
            fix = "Pass class_label=3, null_label=10, for example."
            got = f"class_label={class_label} and null_label={null_label}"
            raise ValueError(checks.message("two labels for guidance", got, fix))
        self.unet, self.class_label, self.null_label = unet, class_label, null_label
        self.guidance_scale, self.learned_variance = guidance_scale, learned_variance

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the output for the label, with guidance."""
        if self.class_label is None:
            return self._output(x, time)
        labelled = self._output(x, time, self.class_label)
        if self.guidance_scale == 1:
            return labelled
        return torch.lerp(self._output(x, time, self.null_label), labelled, self.guidance_scale)

    def _output(self, x: Tensor, time: Tensor, label: int | None = None) -> Tensor:
        labels = {} if label is None else {"class_labels": torch.full((len(x),), label, device=x.device)}
        result: Any = self.unet(x, time, **labels)
        output: Tensor = getattr(result, "sample", result)
        return output[:, : x.shape[1]] if self.learned_variance else output


def from_diffusers(
    unet: Network,
    scheduler: Any,
    *,
    class_label: int | None = None,
    guidance_scale: float = 1.0,
    null_label: int | None = None,
    **settings: Unpack[Settings],
) -> DiffusionModel:
    """Adapt a network of diffusers with its scheduler: DDPM, DDIM and similar ones, EDM, ScoreSdeVe, flow matching.

    The adapter reads `config.prediction_type` and the scheduler's `alphas_cumprod`, preconditioning or range of sigmas;
    the number of inference steps does not matter. With guidance, the scores at different levels are not those of one
    distribution with different noise: `anneal` works all the same, `ThroughNoise` does not.

    Args:
        unet: Network such as `UNet2DModel`, or a function of an input and a time that calls one with more arguments.
        scheduler: Scheduler that the network was trained with.
        class_label: Label of the class to draw from, for a class-conditional network.
        guidance_scale: Weight of classifier-free guidance; 1 for none.
        null_label: Label for "no class", for guidance.
        settings: Settings of the model, see `Settings`.
    """
    if (config := getattr(scheduler, "config", None)) is None:
        fix = "Pass a DDPMScheduler, for example."
        raise TypeError(checks.message("a scheduler of diffusers", checks.describe(scheduler), fix))
    learned = str(config.get("variance_type")).startswith("learned")
    net = Conditional(unet, class_label, guidance_scale, null_label, learned)
    kind, predicted = type(scheduler).__name__, config.get("prediction_type")
    if hasattr(scheduler, "discrete_sigmas"):
        return from_score(net, [config["sigma_min"], config["sigma_max"]], by="sigma", **settings)
    if kind.startswith("EDM"):
        return _from_preconditioned(net, config, **settings)
    if kind.startswith("FlowMatch") or predicted == "flow_prediction":
        return _from_flow(net, config, **settings)
    if not hasattr(scheduler, "alphas_cumprod") or predicted not in PREDICTIONS:
        fix = "Use the adapter for what the network predicts: from_epsilon, from_x0, from_v, from_velocity, from_edm."
        got = f"{kind} with prediction_type={predicted!r}"
        raise ValueError(checks.message("a scheduler of DDPM type, EDM, ScoreSdeVe or flow matching", got, fix))
    timesteps = from_alphas_cumprod(scheduler.alphas_cumprod)
    if config.get("timestep_type") == "continuous" and predicted == "v_prediction":
        return built(net, V, log_time, (min(timesteps.levels), max(timesteps.levels)), **settings)
    return discrete(net, PREDICTIONS[predicted], timesteps, **settings)


def _from_preconditioned(net: nn.Module, config: Any, **settings: Unpack[Settings]) -> DiffusionModel:
    """Return the model of a network with EDM's preconditioning."""
    sigma_data = config["sigma_data"]
    settings.setdefault("variance", sigma_data**2)
    sign = -1.0 if config["prediction_type"] == "v_prediction" else 1.0
    return built(
        net, preconditioned(sigma_data, sign), log_time, (config["sigma_min"], config["sigma_max"]), **settings
    )


def _from_flow(net: nn.Module, config: Any, **settings: Unpack[Settings]) -> DiffusionModel:
    """Return the model of a velocity network whose time is measured in training steps."""
    if config.get("invert_sigmas"):
        fix = "Use from_velocity with a function that reverses time."
        raise ValueError(checks.message("time that runs from data to noise", "invert_sigmas=True", fix))
    steps = config["num_train_timesteps"]
    ends = 1 / (steps - 1), float(steps - 1)  # t from 1 / steps to 1 - 1 / steps
    return built(net, VELOCITY, lambda sigma: steps * flow_time(sigma), ends, **settings)

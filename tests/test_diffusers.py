"""Networks of the real library diffusers, and exact functions in their place, by what real schedulers say."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from scoremh import LineIntegral, anneal, annealing, diffusion
from scoremh.annealing import Corrector
from scoremh.diffusion import DiffusionModel, WrappingWarning
from tests.diffusion_cases import MIXTURE, Net, column, networks_of

diffusers: Any = pytest.importorskip("diffusers")
LEVELS = 0.05, 0.5, 5.0
EXACT = networks_of(MIXTURE)


@pytest.fixture(autouse=True)
def untouched_generator() -> Iterator[None]:
    """Restore the global generator, from which diffusers draws first weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def unet(**options: Any) -> Any:
    """Return a small network with random weights."""
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=options.pop("out_channels", 1),
        layers_per_block=1,
        block_out_channels=(8, 8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 3,
        up_block_types=("UpBlock2D",) * 3,
        **options,
    ).eval()


class Output:
    """What networks of diffusers answer: an object with a sample."""

    def __init__(self, sample: Tensor) -> None:
        self.sample = sample


def exact_of(scheduler: Any) -> dict[str, Net]:
    """Return the exact networks for a scheduler's own abar, which are products in float32."""
    abar = scheduler.alphas_cumprod.double()
    return networks_of(MIXTURE, ((1 - abar) / abar).sqrt())


def assert_exact(model: DiffusionModel, tolerance: float = 1e-9) -> None:
    x = MIXTURE.at(0.5).sample(12, generator=torch.Generator().manual_seed(0)).reshape(12, 1, 2, 2)
    for sigma in LEVELS:
        score = model.at(sigma).score
        assert score is not None
        true = MIXTURE.at(sigma).score(x.flatten(1)).reshape(x.shape)
        torch.testing.assert_close(score(x), true, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers, with numpy 2
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("name", ["DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler"])
def test_schedulers_of_the_kind_of_ddpm(name: str, prediction: str) -> None:
    scheduler = getattr(diffusers, name)(prediction_type=prediction)
    exact = exact_of(scheduler)[{"epsilon": "epsilon", "sample": "x0", "v_prediction": "v"}[prediction]]
    scheduler.set_timesteps(10)  # steps of sampling, which are not those of training
    model = diffusion.from_diffusers(lambda x, t: Output(exact(x, t)), scheduler, variance=MIXTURE.variance)
    assert_exact(model)
    assert model.levels is not None
    assert len(model.levels) == 1000


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_schedulers_of_the_kind_of_edm(prediction: str) -> None:
    """The network is the one for which the scheduler's own preconditioning gives the exact denoiser."""
    scheduler = diffusers.EDMEulerScheduler(prediction_type=prediction)

    def net(y: Tensor, time: Tensor) -> Output:
        sigma = (4 * time).exp()
        one, zero = torch.ones_like(sigma), torch.zeros_like(sigma)
        x = y / column(scheduler.precondition_inputs(one, sigma), y)
        skip, out = (scheduler.precondition_outputs(*pair, sigma) for pair in ((one, zero), (zero, one)))
        return Output((EXACT["denoiser"](x, sigma) - column(skip, y) * x) / column(out, y))

    model = diffusion.from_diffusers(net, scheduler)
    assert model.variance == 0.25
    assert model.noise_range == (0.002, 80.0)
    assert_exact(model, 1e-8)


def test_the_scheduler_of_the_variance_exploding_process() -> None:
    scheduler = diffusers.ScoreSdeVeScheduler(sigma_max=50.0)
    model = diffusion.from_diffusers(lambda x, t: Output(EXACT["score by sigma"](x, t)), scheduler)
    assert model.noise_range == (0.01, 50.0)
    assert_exact(model)


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"])
def test_schedulers_of_flow_matching_count_time_in_steps(name: str) -> None:
    seen = []

    def net(x: Tensor, time: Tensor) -> Output:
        seen.append(time)
        return Output(EXACT["velocity"](x, time / 1000))

    model = diffusion.from_diffusers(net, getattr(diffusers, name)(shift=3.0), variance=MIXTURE.variance)
    assert_exact(model)
    assert seen[-1].unique().tolist() == [pytest.approx(1000 * 5 / 6)]  # sigma = 5, the last level


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_unet_in_any_dtype(dtype: torch.dtype) -> None:
    net, x = unet().to(dtype), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    model = diffusion.from_diffusers(net, diffusers.EDMEulerScheduler(), max_rows=64, probes=2)
    score, divergence = model.level_score(x, 2.0)
    with torch.inference_mode():
        scale = (2.0**2 + 0.25) ** -0.5
        raw = net((x * scale).to(dtype), torch.full((3,), math.log(2.0) / 4)).sample.double()
        alone = model.at(2.0).score(x)  # type: ignore[misc]
    torch.testing.assert_close(alone, -(scale**2) * x + 0.5 * scale / 2 * raw, rtol=1e-6, atol=1e-6)
    # with the divergence, attention is computed by another kernel: as near as the dtype of the network is
    torch.testing.assert_close(score, alone, rtol=0, atol=torch.finfo(dtype).eps)
    with torch.inference_mode():
        torch.testing.assert_close(model.level_score(x.clone(), 2.0)[1], divergence)
    assert divergence.shape == (3,)
    assert not score.requires_grad
    assert score.dtype == torch.float64


def test_chains_run_on_a_real_unet() -> None:
    model = diffusion.from_diffusers(unet(), diffusers.EDMEulerScheduler(), like=(1, 8, 8))
    corrector = Corrector(model, 0.1, LineIntegral(), steps=2)
    start = 10 * torch.randn(4, 1, 8, 8)
    found = anneal(corrector.kernel_at, annealing.karras(10.0, 0.1, 4), start, steps_per_level=2)
    assert found.draws.isfinite().all()
    assert corrector(found.draws, 0.1).shape == (4, 1, 8, 8)


def test_an_untrained_unet_is_noticed() -> None:
    with pytest.warns(WrappingWarning, match="wrapped as an epsilon network, the network is not one"):
        diffusion.from_diffusers(unet(), diffusers.DDPMScheduler(), like=(1, 8, 8))


def test_classes_and_guidance() -> None:
    net, x = unet(num_class_embeds=3), torch.randn(5, 1, 8, 8)
    scheduler, time = diffusers.EDMEulerScheduler(), torch.full((5,), math.log(1.5) / 4)
    scale = (1.5**2 + 0.25) ** -0.5
    with torch.inference_mode():
        label, null = (net(x * scale, time, class_labels=torch.full((5,), k)).sample for k in (1, 2))
        for weight in (1.0, 3.0):
            model = diffusion.from_diffusers(net, scheduler, class_label=1, null_label=2, guidance_scale=weight)
            raw = null + weight * (label - null)
            score = model.at(1.5).score
            assert score is not None
            torch.testing.assert_close(score(x), -(scale**2) * x + 0.5 * scale / 1.5 * raw, rtol=1e-4, atol=1e-5)
    assert not label.allclose(null)


def test_the_half_that_is_a_learned_variance_is_left_out() -> None:
    scheduler = diffusers.DDPMScheduler(variance_type="learned_range")
    exact = exact_of(scheduler)["epsilon"]

    def net(x: Tensor, time: Tensor) -> Output:
        return Output(torch.cat([exact(x, time), torch.ones_like(x)], 1))

    assert_exact(diffusion.from_diffusers(net, scheduler, variance=MIXTURE.variance))


def test_what_is_not_known_is_refused() -> None:
    for scheduler in (diffusers.IPNDMScheduler(), diffusers.DDPMScheduler(prediction_type="other")):
        with pytest.raises(ValueError, match="a scheduler of DDPM's kind"):
            diffusion.from_diffusers(unet(), scheduler)
    with pytest.raises(TypeError, match="a scheduler of diffusers"):
        diffusion.from_diffusers(unet(), torch.linspace(0, 1, 3))
    with pytest.raises(ValueError, match="two labels for guidance"):
        diffusion.from_diffusers(unet(), diffusers.DDPMScheduler(), class_label=1, guidance_scale=2.0)
    inverted = diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True)
    with pytest.raises(ValueError, match="time that runs from data to noise"):
        diffusion.from_diffusers(unet(), inverted)

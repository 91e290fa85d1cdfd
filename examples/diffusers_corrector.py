"""Metropolis-Hastings between the steps of a diffusers pipeline.

A pipeline calls its scheduler for every step, so a scheduler that corrects the images of its parent class is enough:
`DDPMPipeline` itself is unchanged. The network is a small UNet, trained here for a few seconds on 8x8 digits.
"""

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.schedulers.scheduling_ddpm import DDPMSchedulerOutput
from torch import Tensor

from scoremh import ScaledMALA, datasets, diffusion
from scoremh.annealing import Corrector


class CorrectedScheduler(DDPMScheduler):  # type: ignore[misc]
    """A DDPM scheduler that follows each step with Metropolis-Hastings transitions at the new noise level."""

    corrector: Corrector | None = None
    transitions: torch.Generator | None = None

    def step(self, model_output: Tensor, timestep: int, sample: Tensor, **options: object) -> DDPMSchedulerOutput:
        """Return the corrected image at the previous timestep."""
        output = super().step(model_output, timestep, sample, **options)
        before = int(self.previous_timestep(timestep))
        if self.corrector is None or before < 0:
            return output
        scale = float(self.alphas_cumprod[before]) ** 0.5  # x_t = scale (x0 + sigma z)
        sigma = (1 / scale**2 - 1) ** 0.5
        x = self.corrector(output.prev_sample / scale, sigma, generator=self.transitions)
        return DDPMSchedulerOutput(prev_sample=scale * x, pred_original_sample=output.pred_original_sample)


def small_unet() -> UNet2DModel:
    """Return a network with random weights for 8x8 images."""
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    return UNet2DModel(8, 1, 1, block_out_channels=(16, 32), norm_num_groups=8, layers_per_block=1, **blocks)


def train(unet: UNet2DModel, scheduler: DDPMScheduler, images: Tensor, steps: int) -> None:
    """Train a network to predict the noise, as diffusers does."""
    optimizer = torch.optim.AdamW(unet.parameters(), 2e-3)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (64,))]
        noise, times = torch.randn_like(batch), torch.randint(scheduler.config.num_train_timesteps, (len(batch),))
        loss = (unet(scheduler.add_noise(batch, noise, times), times).sample - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unet.eval()


def main(training_steps: int = 200, images: int = 32, inference_steps: int = 12) -> dict[str, Tensor]:
    """Draw images with and without a corrector, print their moments and return them."""
    digits = datasets.digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet, scheduler = small_unet(), CorrectedScheduler()
        train(unet, scheduler, digits, training_steps)
    model = diffusion.from_diffusers(unet, scheduler, like=digits[:200], variance=float(digits.var()))
    corrector = Corrector(model, lambda sigma: ScaledMALA(0.25), steps=2)
    found = {}
    for name, own in (("predictor alone", None), ("with a corrector", corrector)):
        scheduler.corrector, scheduler.transitions = own, torch.Generator().manual_seed(1)
        pipeline = DDPMPipeline(unet, scheduler)
        pipeline.set_progress_bar_config(disable=True)
        g = torch.Generator().manual_seed(2)
        drawn = pipeline(images, generator=g, num_inference_steps=inference_steps, output_type="np").images
        found[name] = torch.from_numpy(drawn)[..., 0]
        print(f"{name}: mean {found[name].mean():.3f}, standard deviation {found[name].std():.3f}")
    print(f"digits: mean {(digits / 2 + 0.5).mean():.3f}, standard deviation {(digits / 2).std():.3f}")
    return found


if __name__ == "__main__":
    main()

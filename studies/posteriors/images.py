"""Posteriors, products and plain generation of 8 x 8 digits, with a network that is conditional on the class."""

import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from scoremh import (
    MALA,
    Always,
    LineIntegral,
    annealing,
    datasets,
    diffusion,
    metropolis_hastings,
    sample,
    smc,
    targets,
)
from scoremh.annealing.anneal import reverse_diffusion
from scoremh.diffusion import Conditional, DiffusionModel
from scoremh.targets import Product
from scoremh.types import Kernel, Target
from studies.framework import Cell, Record
from studies.plots import image_panels
from studies.posteriors.cells import Config

RANGE, VARIANCE, WIDTH, TRAINING = (0.1, 20.0), 0.25, 256, 4000
SEEN, STD = 32, 0.2  # pixels of the upper half, and the noise that they are observed with
IMAGES, PARTICLES, LEVEL = 30, 400, 0.9  # held-out images; of each; of the interval whose coverage is measured
GUIDANCE, CLASS, PAIR, DRAWS = 2.0, 3, (3, 8), 200
LEVELS, STEPS = 40, 5  # of chains, and their steps at each; three times as many at the lowest level alone
MEAN = -0.39  # of all pixels
WAYS = {
    "reverse": "reverse diffusion",
    "lowest": "with Metropolis-Hastings steps at the lowest level",
    "every": "Metropolis-Hastings at 40 levels",
    "smc": "`smc`",
}
TASKS = {
    "plain": ("reverse", "lowest", "every"),
    "guided": ("reverse", "every", "smc"),
    "product": ("reverse", "every", "smc"),
}


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the images as rows in [-1, 1] and their classes, shuffled: 1,397 to learn from, then 400."""
    from sklearn.datasets import load_digits

    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return datasets.digits().flatten(1)[order], torch.from_numpy(load_digits().target)[order]


class Denoiser(nn.Module):
    """A denoiser with the preconditioning of Karras et al. (2022), of a class as one of eleven; the last is any."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(64 + 16 + 11, WIDTH)
        self.hidden = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.outputs = nn.Linear(WIDTH, 64)

    def forward(self, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        """Return E[x0 | x]."""
        sigma, middle = sigma.reshape(-1, 1).to(x), MEAN
        total = (sigma.square() + VARIANCE).sqrt()
        angles = sigma.log() * torch.arange(1, 9).to(x) / 3
        classes = nn.functional.one_hot(label.flatten().long(), 11).to(x)
        h = self.inputs(torch.cat([(x - middle) / total, angles.sin(), angles.cos(), classes], 1))
        for layer in self.hidden:
            h = h + nn.functional.silu(layer(nn.functional.silu(h)))
        keep, change = VARIANCE / total.square(), sigma * VARIANCE**0.5 / total
        found: Tensor = middle + keep * (x - middle) + change * self.outputs(nn.functional.silu(h))
        return found


def prepare(config: Config, folder: Path) -> None:
    """Train the network, once."""
    path = folder / "digits.safetensors"
    if path.exists():
        return
    images, labels = digits()
    torch.manual_seed(0)
    g, net = torch.Generator().manual_seed(0), Denoiser()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(TRAINING):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / TRAINING) + 1e-5
        rows = torch.randint(1397, (256,), generator=g)
        label = torch.where(torch.rand(256, generator=g) < 0.2, 10, labels[rows])
        sigma = (1.3 * torch.randn(256, 1, generator=g) - 0.7).exp().clamp(*RANGE)
        away = net(images[rows] + sigma * torch.randn(256, 64, generator=g), sigma, label) - images[rows]
        loss = (away.square() * (1 / sigma.square() + 1 / VARIANCE)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_file(net.state_dict(), path)


def models(folder: Path) -> DiffusionModel:
    """Return the model of any class; `.given(torch.tensor([3]))` is that of threes."""
    net = Denoiser()
    net.load_state_dict(load_file(folder / "digits.safetensors"))
    known = digits()[0][:1397]
    return diffusion.from_denoiser(
        Conditional(net.eval(), torch.tensor([[10]])),
        RANGE,
        variance=VARIANCE,
        mean=torch.full((64,), MEAN),
        like=known,
    )


@cache
def classifier() -> LogisticRegression:
    """Return a classifier of noisy images, learned from the same ones."""
    images, labels = digits()
    g = torch.Generator().manual_seed(0)
    noisy = (images[:1397].repeat(3, 1) + RANGE[0] * torch.randn(3 * 1397, 64, generator=g)).numpy()
    return LogisticRegression(C=0.1, max_iter=300).fit(noisy, labels[:1397].repeat(3).numpy())


def recognised(x: Tensor, classes: tuple[int, ...]) -> float:
    """Return the share of images that are read as one of some classes."""
    found = torch.from_numpy(classifier().predict(x.float().numpy()))
    return float(torch.stack([found == each for each in classes]).any(0).float().mean())


def unjudged(target: Target | Product, steps: dict[float, float]) -> Callable[[float], Kernel]:
    """Return moves of the same step sizes, all accepted, with the covariance of a normal prior and the likelihood."""

    def kernel_at(level: float) -> Kernel:
        sigma = level or RANGE[0]
        seen = (STD**2 + sigma**2) ** -1 * (torch.arange(64) < SEEN)
        covariance = 1 / (1 / (VARIANCE / 4 + sigma**2) + seen)
        at = target.at(level)
        return metropolis_hastings(at, MALA(steps[level], covariance=covariance), Always())

    return kernel_at


class Inpainted(Cell, kind="inpainted"):
    """The lower half of held-out digits given the upper: coverage, and the rank of the truth."""

    accept: bool
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        model, g = models(folder), torch.Generator().manual_seed(self.seed)
        images, start, calls = digits()[0][1397:][:IMAGES], time.process_time(), 0.0
        true = images + RANGE[0] * torch.randn(images.shape, generator=g)  # the model is read at its lowest level
        seen = true[:, :SEEN] + STD * torch.randn(IMAGES, SEEN, generator=g)
        mask, covered, error, shown = torch.arange(64) < SEEN, [], [], []
        for x, y in zip(true, seen, strict=True):
            posterior = targets.posterior(model, targets.linear_observation(mask, y, STD))
            found = smc(posterior, particles=PARTICLES, generator=g)
            if not self.accept:
                steps = {stage.level: stage.step_size for stage in found.stages}
                levels, kernel_at = found.levels[:-1], unjudged(posterior, steps)
                found = smc(posterior, particles=PARTICLES, levels=levels, kernel_at=kernel_at, generator=g)
            hidden = found.draws[:, SEEN:]
            low, high = (hidden.quantile(q, 0) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
            covered.append(float(((x[SEEN:] > low) & (x[SEEN:] < high)).float().mean()))
            error.append(float((hidden.mean(0) - x[SEEN:]).square().mean()))
            shown.append(torch.stack([x, torch.cat([y, torch.full((64 - SEEN,), -1.0)]), *found.draws[:6]]))
            calls += found.score_calls / PARTICLES / IMAGES
        save_file({"images": torch.cat(shown[:6]).float()}, folder / f"inpainted-{self.accept}.safetensors")
        spread = torch.tensor(covered)
        return {
            "coverage": float(spread.mean()),
            "coverage_error": float(spread.std()) / math.sqrt(IMAGES),
            "squared_error": sum(error) / IMAGES,
            "calls": calls,
            "seconds": time.process_time() - start,
        }


class Generated(Cell, kind="generated"):
    """Plain generation of one class, guidance, and products of classes: how many images are read as such."""

    what: str
    way: str

    def measure(self, config: Config, folder: Path) -> Record:
        every, g = models(folder), torch.Generator().manual_seed(7)
        one, two = (every.given(torch.tensor([each])) for each in PAIR)
        tasks: dict[str, DiffusionModel | Target | Product] = {
            "plain": one,
            "guided": targets.product(one, every, weights=[1 + GUIDANCE, -GUIDANCE]),
            "product": targets.product(one, two, weights=[0.5, 0.5]),
        }
        start = time.process_time()
        x = self.drawn(tasks[self.what], g)
        seconds = time.process_time() - start
        save_file({"images": x[:48].float().contiguous()}, folder / f"generated-{self.what}-{self.way}.safetensors")
        found = x.clamp(-1.5, 1.5).nan_to_num()
        return {
            "recognised": recognised(found, PAIR if self.what == "product" else (CLASS,)),
            "spread": float(found.var(0).sum().sqrt()),
            "seconds": seconds,
        }

    def drawn(self, target: DiffusionModel | Target | Product, g: torch.Generator) -> Tensor:
        """Return draws of one way."""
        if self.way == "smc":
            return smc(target, particles=DRAWS, generator=g).draws
        at, (low, high) = target.at, RANGE
        x = MEAN + high * torch.randn(DRAWS, 64, generator=g)

        def kernel_at(level: float) -> Kernel:
            return metropolis_hastings(at(level), MALA(0.3 * level**2), LineIntegral())

        if self.way == "every":
            levels = annealing.geometric(high, low, LEVELS)
            return annealing.anneal(kernel_at, levels, x, steps_per_level=STEPS, generator=g).draws
        x = reverse_diffusion(at, high, low, x, generator=g)
        if self.way == "reverse":
            return x
        return sample(kernel_at(low), x, draws=1, thin=3 * STEPS, generator=g).draws[:, 0]


def picture(folder: Path, path: Path) -> None:
    """Draw inpainted and generated images, if the folder has them."""
    files = {
        "seen, and six of the posterior": "inpainted-True",
        "plain: reverse diffusion": "generated-plain-reverse",
        "guided: reverse diffusion": "generated-guided-reverse",
        "guided: smc": "generated-guided-smc",
        "3 and 8: reverse diffusion": "generated-product-reverse",
        "3 and 8: smc": "generated-product-smc",
    }
    found = {name: folder / f"{file}.safetensors" for name, file in files.items()}
    if all(place.exists() for place in found.values()):
        panels = {name: load_file(place)["images"].reshape(-1, 1, 8, 8)[:48] for name, place in found.items()}
        image_panels(panels, path, columns=3, images_per_row=8)

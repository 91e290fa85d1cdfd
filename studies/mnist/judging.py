"""How far images are from test images, by pixels and by the features of one kept LeNet; each beside its floor."""

import hashlib
from functools import cache

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from scoremh import metrics
from studies.framework import Cell, Record
from studies.mnist.source import WEIGHTS, images

DISTANCES = {"w1": "pixel W1", "frechet": "Frechet"}
LENET = WEIGHTS / "mnist-lenet.safetensors"
SHA256 = "d1422adafcdd7c19d9622ab5640c57c8099fb459e183b2730bc450de53588140"
"""Hash of the file: two trainings differ by a factor of two in Frechet distances."""
STEPS, BATCH, RATE = 1500, 64, 1e-3
CALL_IMAGES = 1000


class LeNet(nn.Module):
    """LeNet-5 with ReLU and maxima: 84 features, and the digit they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.wide, self.narrow, self.last = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def features(self, x: Tensor) -> Tensor:
        """Return the 84 numbers that the last layer reads."""
        y = max_pool2d(relu(self.second(max_pool2d(relu(self.first(x)), 2))), 2)
        return relu(self.narrow(relu(self.wide(y.flatten(1)))))

    def forward(self, x: Tensor) -> Tensor:
        """Return a logit for each of the ten digits."""
        logits: Tensor = self.last(self.features(x))
        return logits


def train_lenet(pictures: Tensor, labels: Tensor) -> None:
    """Train a LeNet from a seed, and write its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = LeNet()
    optimiser, draws = torch.optim.Adam(net.parameters(), RATE), torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(len(pictures), (BATCH,), generator=draws)
        loss = cross_entropy(net(pictures[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, LENET)


@cache
def lenet() -> LeNet:
    """Return the kept LeNet; raise an error if the file is another one."""
    found = hashlib.sha256(LENET.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"expected {LENET.name} with the hash {SHA256}, got {found}. Restore the file.")
    net = LeNet()
    net.load_state_dict(load_file(LENET))
    return net.requires_grad_(False).eval()


def features(pictures: Tensor) -> Tensor:
    """Return the features of images in [-1, 1], in float64."""
    return torch.cat([lenet().features(part) for part in pictures.split(CALL_IMAGES)]).double()


def subset(pictures: Tensor, n: int, seed: int) -> Tensor:
    """Return a random subset."""
    return pictures[torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:n]]


def frechet_squared(a: Tensor, b: Tensor) -> float:
    """Return |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)), between normal distributions with the moments of features."""
    (mean, covariance), (other_mean, other) = ((x.mean(0), x.mT.cov()) for x in (a, b))
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT  # C^(1/2), symmetric where C C' is not
    shared = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + covariance.trace() + other.trace() - 2 * shared)


@torch.inference_mode()
def judged(drawn: Tensor, reference: Tensor) -> Record:
    """Return both distances of images to as many real ones; None where images are not finite.

    Images are clamped to [-1, 1] for the features, whose network saw no others.
    """
    if not bool(drawn.isfinite().all()):
        return dict.fromkeys(DISTANCES)
    squared = frechet_squared(features(drawn.clamp(-1, 1)), features(reference))
    return {"w1": metrics.w1(drawn.flatten(1), reference.flatten(1)), "frechet": squared}


class Floor(Cell, kind="floor"):
    """The mean distances between disjoint random subsets of real images."""

    n: int

    def measure(self, config: object, folder: object, repeats: int = 5) -> Record:
        found = []
        for seed in range(repeats):
            both = subset(images("test"), 2 * self.n, 1000 + seed)
            found.append(judged(both[: self.n], both[self.n :]))
        return {key: float(np.mean([one[key] for one in found])) for key in DISTANCES}

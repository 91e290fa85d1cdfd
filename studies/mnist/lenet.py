"""One LeNet, kept with its hash: images are compared in its features, and read by it."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

from studies.mnist.images import WEIGHTS

FILE = WEIGHTS / "mnist-lenet.safetensors"
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


def train(images: Tensor, labels: Tensor) -> LeNet:
    """Return a LeNet that was trained from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = LeNet()
    optimiser, draws = torch.optim.Adam(net.parameters(), RATE), torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        loss = cross_entropy(net(images[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def save(net: LeNet, path: Path = FILE) -> str:
    """Write the weights, and return the hash of their file."""
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def kept() -> LeNet:
    """Return the kept LeNet; raise an error if the file is another one."""
    found = hashlib.sha256(FILE.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{FILE} has SHA-256 {found} instead of {SHA256}: distances would not compare.")
    net = LeNet()
    net.load_state_dict(load_file(FILE))
    return net.requires_grad_(False).eval()


def features(x: Tensor) -> Tensor:
    """Return 84 features of every image, as float64."""
    return torch.cat([kept().features(part) for part in x.split(CALL_IMAGES)]).double()


def digits(x: Tensor) -> Tensor:
    """Return the digit that every image is read as."""
    return torch.cat([kept()(part).argmax(1) for part in x.split(CALL_IMAGES)])

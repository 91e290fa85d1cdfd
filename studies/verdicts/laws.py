"""The distributions on which verdicts are tested; no limit was chosen on them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Draw = Callable[[int, torch.Generator], Tensor]


def spiral(n: int, g: torch.Generator) -> Tensor:
    """Return a noisy spiral, and its radius with noise."""
    turn = 1 + 5 * torch.rand(n, generator=g).sqrt()
    x = torch.stack([turn * turn.cos(), turn * turn.sin(), turn], 1)
    return x + 0.25 * torch.randn(n, 3, generator=g)


def factors(n: int, g: torch.Generator) -> Tensor:
    """Return twelve columns that depend on three factors, one of them skewed."""
    z = torch.randn(n, 3, generator=g)
    z = torch.cat([z[:, :2], torch.expm1(0.8 * z[:, 2:])], 1)
    loading = torch.randn(3, 12, generator=torch.Generator().manual_seed(4))
    return z @ loading + 0.6 * torch.randn(n, 12, generator=g)


def blobs(n: int, g: torch.Generator) -> Tensor:
    """Return nine blobs of different weights in a plane."""
    k = torch.multinomial(torch.arange(1.0, 10.0), n, True, generator=g)
    centres = torch.stack([k % 3, k // 3], 1).float()
    return 3 * centres + (0.3 + 0.05 * k[:, None]) * torch.randn(n, 2, generator=g)


def trips(n: int, g: torch.Generator) -> Tensor:
    """Return distance, minutes, speed and fare of trips."""
    z = torch.randn(n, 3, generator=g)
    distance = (1 + 0.7 * z[:, 0]).exp()
    speed = 20 + 6 * distance.log() + 4 * z[:, 1]
    minutes = 60 * distance / speed.clamp(min=5) + (0.5 * z[:, 2]).exp()
    fare = (3 + 1.6 * distance + 0.4 * minutes + 0.5 * torch.randn(n, generator=g)).clamp(min=4)
    return torch.stack([distance, minutes, speed, (10 * fare).round() / 10], 1)


def survey(n: int, g: torch.Generator) -> Tensor:
    """Return age, a group, two scales, an income with zeros, and hours."""
    age = (18 + 62 * torch.rand(n, generator=g) ** 1.3).floor()
    group = (torch.rand(n, generator=g) < torch.sigmoid((age - 50) / 15)).float()
    z = torch.randn(n, 2, generator=g)
    mood, trust = (3 + 0.9 * z[:, 0]).round().clamp(1, 5), (4 + z[:, 0] + z[:, 1] - group).round().clamp(1, 7)
    none = torch.rand(n, generator=g) < 0.15 + 0.3 * (age > 65)
    income = torch.where(none, 0.0, 50 * (40 * (0.5 * z[:, 1] + 0.2 * group).exp()).round())
    hours = torch.where(none, 0.0, (38 + 6 * torch.randn(n, generator=g)).round().clamp(5, 60))
    return torch.stack([age, group, mood, trust, income, hours], 1)


def shell(n: int, g: torch.Generator) -> Tensor:
    """Return a shell around a ball in five dimensions."""
    direction = torch.nn.functional.normalize(torch.randn(n, 5, generator=g), dim=1)
    return (3 + 0.3 * torch.randn(n, 1, generator=g)) * direction


def tails(n: int, g: torch.Generator) -> Tensor:
    """Return four columns with tails of different weight that depend on each other."""
    z = torch.randn(n, 4, generator=g) @ torch.linalg.cholesky(0.5 * torch.eye(4) + 0.5).mT
    return torch.stack([z[:, 0], (1.2 * z[:, 1]).sinh(), z[:, 2] ** 3, z[:, 3].exp()], 1)


def station(n: int, g: torch.Generator) -> Tensor:
    """Return hour, temperature, sun with zeros at night, a share, and wind of a weather station."""
    hour = torch.randint(24, (n,), generator=g).float()
    height = ((hour - 6) * math.pi / 12).sin().clamp(min=0)
    cloud = torch.rand(n, generator=g)
    sun = (900 * height * (1 - 0.7 * cloud)).round()
    temperature = (12 + 8 * height - 3 * cloud + 2 * torch.randn(n, generator=g)).mul(10).round() / 10
    wind = (torch.randn(n, 2, generator=g).norm(dim=1) * (2 + 2 * cloud)).mul(10).round() / 10
    return torch.stack([temperature, hour, sun, cloud, wind], 1)


def regression(n: int, g: torch.Generator) -> Tensor:
    """Return seven columns, the last a function of products of the others."""
    x = torch.rand(n, 6, generator=g)
    y = 4 * x[:, 0] * x[:, 1] - 3 * (x[:, 2] > 0.5) * x[:, 3] + 0.3 * torch.randn(n, generator=g)
    return torch.cat([x, y[:, None]], 1)


def seasons(n: int, g: torch.Generator) -> Tensor:
    """Return a place on a circle as sine and cosine, an amplitude, and their noisy product."""
    angle = 2 * math.pi * torch.rand(n, generator=g) ** 0.8
    size = 0.5 + torch.rand(n, generator=g)
    product = size * angle.cos() + 0.1 * torch.randn(n, generator=g)
    return torch.stack([angle.sin() + 0.05 * torch.randn(n, generator=g), angle.cos(), size, product], 1)


LAWS: dict[str, tuple[str, Draw]] = {
    "spiral": ("a spiral, 3 columns", spiral),
    "factors": ("three factors, 12 columns", factors),
    "blobs": ("nine blobs, 2 columns", blobs),
    "trips": ("trips, 4 columns", trips),
    "survey": ("a survey, 6 columns", survey),
    "shell": ("a shell, 5 columns", shell),
    "tails": ("tails, 4 columns", tails),
    "station": ("a weather station, 5 columns", station),
    "regression": ("products, 7 columns", regression),
    "seasons": ("a circle, 4 columns", seasons),
}

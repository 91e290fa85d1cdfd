"""The only place of the library that draws random numbers in a kernel.

Everything random takes a `torch.Generator`. Where none is given, a private one seeded by the operating system serves;
torch's global generator is never touched.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from scoremh._shared import checks

_unseeded: dict[torch.device, torch.Generator] = {}


def resolve(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Return the generator given, or this process's own unseeded one for the device."""
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            fix = "Use torch.Generator().manual_seed(0), for example."
            raise TypeError(checks.message("a torch.Generator", checks.describe(generator), fix))
        return generator
    if device not in _unseeded:
        _unseeded[device] = torch.Generator(device)
        _unseeded[device].seed()
    return _unseeded[device]


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers with the dtype and device of `like`."""
    return like.new_empty(shape).normal_(generator=resolve(generator, like.device))


def uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw numbers uniform on [0, 1)."""
    return like.new_empty(shape).uniform_(generator=resolve(generator, like.device))


def log_uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw log u with u uniform on (0, 1].

    `uniform_` draws from [0, 1), and 0 comes once in 2^24 float32 numbers: its log would accept any proposal.
    1 - u is never 0.
    """
    return uniform(shape, like, generator).neg_().log1p_()


def seeds(n: int, generator: torch.Generator | None) -> list[int]:
    """Draw seeds for n independent generators."""
    device = torch.device("cpu") if generator is None else resolve(generator, torch.device("cpu")).device
    out = torch.empty(n, dtype=torch.int64, device=device)
    drawn: list[int] = out.random_(2**53, generator=resolve(generator, device)).tolist()
    return drawn


def seeded(seed: int, device: torch.device) -> torch.Generator:
    """Return a new generator with this seed."""
    return torch.Generator(device).manual_seed(seed)


@contextmanager
def layers(seed: int) -> Iterator[None]:
    """Make torch's global generator one with this seed, within: layers such as dropout draw from it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs as well
        yield


@contextmanager
def weights(generator: torch.Generator | None) -> Iterator[None]:
    """Make torch's global generator one with a seed from ours, within; modules draw their first weights from it."""
    with layers(seeds(1, generator)[0]):
        yield

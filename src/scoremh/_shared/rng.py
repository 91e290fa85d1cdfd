"""Random numbers: everything random takes a `torch.Generator`.

Without one, a private generator seeded by the operating system is used. Kernels, sampling, the initial weights of our
networks and their training never use torch's global generator. The exception are networks with layers other than ours
and `DETERMINISTIC_LAYERS`: dropout, for example, can draw only from the global generator. They are trained in a fork of
it with its own seed, and its state is restored afterwards.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from scoremh._shared import checks

DETERMINISTIC_LAYERS = (nn.Conv2d, nn.Linear, nn.ModuleList, nn.Sequential)  # torch's layers in our networks
_unseeded: dict[torch.device, torch.Generator] = {}


def resolve(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Return the given generator, or the unseeded generator of this process for the device."""
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

    `uniform_` draws from [0, 1), and gives 0 once in 2^24 float32 numbers; log 0 would accept any candidate. 1 - u is
    never 0.
    """
    return uniform(shape, like, generator).neg_().log1p_()


def seeds(n: int, generator: torch.Generator | None) -> list[int]:
    """Draw seeds for n independent generators."""
    device = torch.device("cpu") if generator is None else resolve(generator, torch.device("cpu")).device
    numbers = torch.empty(n, dtype=torch.int64, device=device)
    integers: list[int] = numbers.random_(2**53, generator=resolve(generator, device)).tolist()
    return integers


def seeded(seed: int, device: torch.device) -> torch.Generator:
    """Return a new generator with this seed."""
    return torch.Generator(device).manual_seed(seed)


def child(generator: torch.Generator | None) -> torch.Generator:
    """Return a new generator on the CPU, seeded from this one, for the initial weights of a network."""
    return seeded(seeds(1, generator)[0], torch.device("cpu"))


def draws_globally(net: nn.Module) -> bool:
    """Return whether a network may draw from torch's global generator: it has layers other than ours."""
    return not all(
        type(part) in DETERMINISTIC_LAYERS or type(part).__module__.startswith("scoremh.") for part in net.modules()
    )


@contextmanager
def global_fork(seed: int) -> Iterator[None]:
    """Seed torch's global generator inside the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs as well
        yield


def for_layers_of(net: nn.Module, seed: int) -> AbstractContextManager[None]:
    """Return a context for calling a network: a fork of the global generator if its layers may draw from it."""
    return global_fork(seed) if draws_globally(net) else nullcontext()

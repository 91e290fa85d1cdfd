"""The loop: many chains, many transitions.

Chains run in blocks, each with a generator of its own, so that the draws depend neither on how many threads share the
blocks nor on when a run was interrupted.
"""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint
from scoremh._shared.probe import Probe
from scoremh._shared.progress import Tick, progress_bar
from scoremh.sampling.block import Plan, run_block
from scoremh.sampling.chains import Chains
from scoremh.sampling.records import Records, empty_records
from scoremh.sampling.store import COUNTS, State, Store
from scoremh.types import Kernel

MAX_UNDIVIDED_CHAINS = 1000  # up to which there is one block; beyond, there are at least two, for two threads to share
MAX_BLOCK_CHAINS = 2500  # of more chains, the activations of a small network fall out of the cache
PROBE_CHAINS = 8


def sample(
    kernel: Kernel,
    initial: Tensor,
    *,
    draws: int,
    warmup: int = 0,
    thin: int = 1,
    generator: torch.Generator | None = None,
    progress: bool = False,
    store: str | Path | None = None,
    threads: int | None = None,
) -> Chains:
    """Run one chain from every initial point.

    Args:
        kernel: What `metropolis_hastings` returned, or any `Kernel`.
        initial: Initial points, one per chain, `(chain, *event)`.
        draws: Number of draws to keep of every chain.
        warmup: Transitions before the first kept one. Nothing adapts meanwhile: tune before sampling.
        thin: Transitions per kept draw.
        generator: Random number generator; the same seed gives the same draws.
        progress: Show a progress bar.
        store: Folder to write to during the run. The same call with the same folder resumes from what is there, and
            ends with the same bits as a run that was never interrupted.
        threads: Number of threads that run blocks of chains, torch's own threads off meanwhile; up to 1,000 chains are
            one block. The score must be safe to call from several threads. None leaves torch's threads alone and runs
            one block after another.

    Returns:
        The draws and their records, in memory; nothing else is kept.

    Example:
        >>> import torch
        >>> from scoremh import MALA, LineIntegral, Target, metropolis_hastings, sample
        >>> kernel = metropolis_hastings(Target(score=lambda x: -x), MALA(0.5), LineIntegral())
        >>> chains = sample(kernel, torch.zeros(8, 2), draws=100, generator=torch.Generator().manual_seed(0))
        >>> chains.draws.shape
        torch.Size([8, 100, 2])
    """
    checks.kind(kernel, Kernel, "a Kernel", "Build one with metropolis_hastings(target, proposal, acceptance).")
    checks.events(initial, "initial")
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("thin", thin, 1), ("threads", threads, 1)):
        if value is not None:
            checks.count(value, name, at_least=least)
    starts = initial.detach().tensor_split(blocks(len(initial)))
    seeds, folder = rng.seeds(len(starts), generator), None
    if store is not None:
        header = {"kernel": kernel.description, "draws": draws, "warmup": warmup, "thin": thin}
        header |= {"initial": fingerprint(initial), "seeds": seeds}
        probe = first_step(kernel, initial.detach()[:PROBE_CHAINS])
        folder = Store(store, header, probe, any_seeds=generator is None)
        seeds = folder.seeds
    records = empty_records(initial, draws)
    total = (warmup + draws * thin) * len(initial)
    with progress_bar(total, "sampling", unit="steps", show=progress) as tick, _block_map(threads) as each:
        plan = Plan(kernel, draws, warmup, thin, folder, _Report(tick) if progress else _no_report, threading.Event())
        ends = _run_blocks(plan, starts, seeds, records, each)
    records["acceptance_prob"] /= thin
    _, calls, moves, factors, clipped = (sum(getattr(end, name) for end in ends) for name in COUNTS)
    made: dict[str, Any] = {**records, "thin": thin, "description": kernel.description}
    return Chains(**made, score_calls=calls, moves=moves, factors=factors, clipped=clipped)


def blocks(chains: int) -> int:
    """Return into how many blocks of nearly equal size `sample` divides its chains."""
    return max(math.ceil(chains / MAX_BLOCK_CHAINS), min(2, math.ceil(chains / MAX_UNDIVIDED_CHAINS)))


def first_step(kernel: Kernel, initial: Tensor) -> Probe:
    """Return what one step makes of a few chains: it tells kernels apart whose descriptions are the same."""
    _, move = kernel.step(kernel.init(initial), generator=rng.seeded(0, initial.device))
    return Probe.of(move.proposed, move.log_accept)


def _run_blocks(
    plan: Plan, starts: tuple[Tensor, ...], seeds: list[int], records: Records, each: Callable[..., Iterator[State]]
) -> list[State]:
    """Run all blocks and return their last states; where one fails, the others end after their segment."""

    def run(block: int) -> State:
        own = {name: record.tensor_split(len(starts))[block] for name, record in records.items()}
        return run_block(plan, block, starts[block], seeds[block], own)

    try:
        return list(each(run, range(len(starts))))
    except BaseException:
        plan.stop.set()
        raise


class _Report:
    """Show on the progress bar how far all blocks are, and the acceptance rate so far."""

    def __init__(self, tick: Tick) -> None:
        self.tick, self.lock, self.judged, self.accepted = tick, threading.Lock(), 0, 0

    def __call__(self, advance: int, accepted: int | None) -> None:
        with self.lock:
            if accepted is not None:
                self.judged, self.accepted = self.judged + advance, self.accepted + accepted
            self.tick(advance, f"acceptance {self.accepted / self.judged:.3f}" if self.judged else "")


def _no_report(advance: int, accepted: int | None) -> None:
    pass


@contextmanager
def _block_map(threads: int | None) -> Iterator[Callable[..., Iterator[State]]]:
    """Yield a `map` over blocks: the plain one, or one on threads with torch's own threads off."""
    if threads is None:
        yield map
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(before)

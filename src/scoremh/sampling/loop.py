"""The loop: many chains, many transitions.

Chains run in blocks, each with a generator of its own, so that the draws depend neither on who runs the blocks nor on
when a run was interrupted.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint
from scoremh._shared.locks import sole_writer
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar
from scoremh.sampling.block import Plan
from scoremh.sampling.chains import Chains, attributes
from scoremh.sampling.jobs import RateReport, jobs_of, run_blocks
from scoremh.sampling.pools import Pool, check_pool
from scoremh.sampling.records import empty_records, finished
from scoremh.sampling.store import COUNTS, Layout, Store
from scoremh.sampling.stored_chains import StoredChains
from scoremh.types import Kernel

MAX_UNDIVIDED_CHAINS = 1000  # up to which there is one block; beyond, there are at least two, for two workers to share
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
    pool: Pool = None,
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
        pool: Where blocks of up to 2,500 chains are run (up to 1,000 chains are one block): None for here, one after
            the other; a number of processes; a `ThreadPoolExecutor`, for a score that is safe to call from several
            threads; any other `Executor`; a `dask.distributed.Client`; or anything with `map`. The draws do not depend
            on it. Other processes need a kernel that can be pickled, and a store that they can reach.

    Returns:
        The draws and their records, in memory; with a store, they stay on disk, and are read when they are asked for.

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
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        checks.count(value, name, at_least=least)
    check_pool(pool)
    points, size = initial.detach(), block_size(len(initial))
    starts = points.split(size)
    seeds = rng.seeds(len(starts), generator)
    with stored_run(store) as folder:
        run = None
        if folder is not None:
            header = {"kernel": kernel.description, "draws": draws, "warmup": warmup, "thin": thin}
            header |= {"initial": fingerprint(initial), "seeds": seeds}
            layout = Layout.of(empty_records(points[:1], 1), len(points), draws, size)
            options: dict[str, Any] = {"any_seeds": generator is None}
            options["attributes"] = attributes(kernel.description, thin)
            run = Store.begin(folder, header, first_step(kernel, points[:PROBE_CHAINS]), layout, **options)
            seeds = run.seeds
        plan = Plan(kernel, draws, warmup, thin, run)
        records = plan.empty_records(points)
        with progress_bar(plan.total * len(points), "sampling", unit="steps", show=progress) as tick:
            ends = run_blocks(pool, plan, jobs_of(starts, seeds), records, RateReport(tick))
        counts = {name: sum(getattr(end, name) for end in ends) for name in COUNTS[1:]}
        if run is not None:
            return StoredChains(run, counts)
    assert records is not None
    made: dict[str, Any] = {**finished(records, thin), **counts}
    return Chains(**made, thin=thin, description=kernel.description)


def blocks(chains: int) -> int:
    """Return into how many blocks `sample` divides its chains."""
    return max(math.ceil(chains / MAX_BLOCK_CHAINS), min(2, math.ceil(chains / MAX_UNDIVIDED_CHAINS)))


def block_size(chains: int) -> int:
    """Return how many chains are in a block; the last may have fewer."""
    return math.ceil(chains / blocks(chains))


@contextmanager
def stored_run(store: str | Path | None) -> Iterator[Path | None]:
    """Yield the folder of a run, with its lock held."""
    if store is None:
        yield None
        return
    folder = Path(store)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        yield folder


def first_step(kernel: Kernel, initial: Tensor) -> Probe:
    """Return what one step makes of a few chains: it tells kernels apart whose descriptions are the same."""
    _, move = kernel.step(kernel.init(initial), generator=rng.seeded(0, initial.device))
    return Probe.of(move.proposed, move.log_accept)

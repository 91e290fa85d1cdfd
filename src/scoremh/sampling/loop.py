"""The loop: many chains, many transitions.

Chains run in blocks, each with a generator of its own, so that the draws depend neither on how many threads share the
blocks nor on when a run was interrupted. A block runs in segments of steps whose noise is drawn at once.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint
from scoremh._shared.progress import Tick, progress_bar
from scoremh.sampling.chains import Chains
from scoremh.sampling.store import State, Store
from scoremh.types import Kernel, Point, Trace

UNDIVIDED = 1000  # chains up to which there is one block; beyond, there are two at least, for two threads to share
BLOCK_CHAINS = 2500  # at most: of more chains, the activations of a small network fall out of the cache
SEGMENT_FLOATS = 131_072  # noise drawn at once, per block
SAVE_SECONDS = 5.0  # between two parts of a stored run


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
        initial: Where the chains start, `(chain, *event)`.
        draws: How many draws to keep of every chain.
        warmup: Transitions to make before the first kept one. Nothing adapts meanwhile: tune before sampling.
        thin: Transitions per kept draw.
        generator: Source of randomness; the same seed gives the same bits.
        progress: Show a progress bar.
        store: A folder to write to as the run goes on. The same call with the same folder goes on from what is there,
            and ends with the same bits as a run that was never interrupted.
        threads: Run blocks of chains on this many threads, torch's own threads off meanwhile; up to 1,000 chains are
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
    checks.events(initial, "initial")
    checks.count(draws, "draws")
    checks.count(warmup, "warmup", at_least=0)
    checks.count(thin, "thin")
    if threads is not None:
        checks.count(threads, "threads")
    starts = initial.detach().tensor_split(blocks(len(initial)))
    seeds, folder = rng.seeds(len(starts), generator), None
    if store is not None:
        header = {
            "kernel": kernel.description,
            "draws": draws,
            "warmup": warmup,
            "thin": thin,
            "initial": fingerprint(initial),
            "seeds": seeds,
        }
        folder = Store(store, header, _probe(kernel, initial.detach()[:8]), any_seeds=generator is None)
        seeds = folder.seeds
    plan = _Plan(kernel, draws, warmup, thin, folder)
    records = _records(initial, draws)
    stop = threading.Event()
    with (
        progress_bar(plan.total * len(initial), "sampling", unit="steps", show=progress) as tick,
        _mapping(threads) as each,
    ):
        report = _Report(tick) if progress else _silent

        def run(block: int) -> State:
            mine = {name: record.tensor_split(len(starts))[block] for name, record in records.items()}
            return _run_block(plan, block, starts[block], seeds[block], mine, report, stop)

        try:
            ends = list(each(run, range(len(starts))))
        except BaseException:
            stop.set()  # the other threads end after their segment
            raise
    records["acceptance_prob"] /= thin
    score_calls, moves = sum(end.score_calls for end in ends), sum(end.moves for end in ends)
    return Chains(**records, thin=thin, score_calls=score_calls, moves=moves, description=kernel.description)


def blocks(chains: int) -> int:
    """Return into how many blocks of nearly equal size `sample` divides its chains."""
    return max(math.ceil(chains / BLOCK_CHAINS), min(2, math.ceil(chains / UNDIVIDED)))


def _probe(kernel: Kernel, initial: Tensor) -> list[float]:
    """Return what one step makes of a few chains: it tells kernels apart whose descriptions are the same."""
    _, move = kernel.step(kernel.init(initial), generator=rng.seeded(0, initial.device))
    return torch.cat([move.proposed.flatten(), move.log_accept]).double().tolist()


class _Plan(NamedTuple):
    """What every block has to do."""

    kernel: Kernel
    draws: int
    warmup: int
    thin: int
    folder: Store | None

    @property
    def total(self) -> int:
        return self.warmup + self.draws * self.thin


def _records(initial: Tensor, draws: int) -> dict[str, Tensor]:
    """Return zeros for all that `Chains` holds, for blocks to write into."""
    shape = (len(initial), draws)
    counts = {name: initial.new_zeros(shape, dtype=torch.int32) for name in ("accepted", "nonfinite", "outside")}
    moving = {"draws": initial.new_zeros(*shape, *initial.shape[1:]), "acceptance_prob": initial.new_zeros(shape)}
    return moving | counts


@torch.inference_mode()
def _run_block(
    plan: _Plan,
    block: int,
    initial: Tensor,
    seed: int,
    records: dict[str, Tensor],
    report: Callable[[int, int | None], None],
    stop: threading.Event,
) -> State:
    """Run one block of chains to the end and return where it is then."""
    generator = rng.seeded(seed, initial.device)
    state = None if plan.folder is None else plan.folder.load(block, generator, records)
    if state is None:
        point = plan.kernel.init(initial)
        state = State(point, 0, 0 if point.score is None else len(initial), 0)
    report(state.done * len(initial), None)
    segment, saved, written = max(1, SEGMENT_FLOATS // initial.numel()), state.done, time.monotonic()
    run = plan.kernel.run or partial(_step_by_step, plan.kernel)
    while state.done < plan.total and not stop.is_set():
        steps = min(segment, plan.total - state.done)
        point, trace = run(state.point, steps, generator=generator)
        _record(records, trace, state.done - plan.warmup, plan.thin)
        moves = int(trace.accepted.sum())
        state = State(point, state.done + steps, state.score_calls + trace.score_calls, state.moves + moves)
        report(trace.accepted.numel(), moves)
        if plan.folder is not None and (state.done == plan.total or time.monotonic() - written > SAVE_SECONDS):
            first, last = (max(0, done - plan.warmup) // plan.thin for done in (saved, state.done + plan.thin - 1))
            plan.folder.save(
                block, state, generator, first, {name: rows[:, first:last] for name, rows in records.items()}
            )
            saved, written = state.done, time.monotonic()
    return state


def _step_by_step(kernel: Kernel, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
    """Run a kernel that has no faster way."""
    xs, moves = [], []
    for _ in range(steps):
        point, move = kernel.step(point, generator=generator)
        xs.append(point.x)
        moves.append(move)
    log_accept, accepted = torch.stack([m.log_accept for m in moves]), torch.stack([m.accepted for m in moves])
    return point, Trace(torch.stack(xs), log_accept, accepted, sum(m.score_calls for m in moves))


def _record(records: dict[str, Tensor], trace: Trace, first: int, thin: int) -> None:
    """Add a trace whose first step is number `first` after warm-up."""
    skipped = max(0, -first)
    if skipped >= len(trace.accepted):
        return
    x, log_accept, accepted = (part[skipped:] for part in trace[:3])
    values = {"acceptance_prob": log_accept.exp(), "accepted": accepted}
    if not log_accept.isfinite().all():
        outside = log_accept == -math.inf
        values["acceptance_prob"].nan_to_num_(0)
        values |= {"outside": outside, "nonfinite": ~(outside | log_accept.isfinite())}
    first += skipped
    if thin == 1:
        for name, value in values.items():
            records[name][:, first : first + len(x)] = value.T
        records["draws"][:, first : first + len(x)] = x.transpose(0, 1)
        return
    step = torch.arange(first, first + len(x), device=x.device)
    for name, value in values.items():
        records[name].index_add_(1, step // thin, value.T.to(records[name].dtype))
    complete = (step + 1) % thin == 0
    records["draws"][:, (step // thin)[complete]] = x[complete].transpose(0, 1)


class _Report:
    """Tell the progress bar how far all blocks are, and the acceptance rate so far."""

    def __init__(self, tick: Tick) -> None:
        self.tick, self.lock, self.judged, self.accepted = tick, threading.Lock(), 0, 0

    def __call__(self, advance: int, accepted: int | None) -> None:
        with self.lock:
            if accepted is not None:
                self.judged, self.accepted = self.judged + advance, self.accepted + accepted
            self.tick(advance, f"acceptance {self.accepted / self.judged:.3f}" if self.judged else "")


def _silent(advance: int, accepted: int | None) -> None:
    pass


@contextmanager
def _mapping(threads: int | None) -> Iterator[Callable[..., Iterator[State]]]:
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

"""One block of chains, run to its end in segments of steps whose noise is drawn at once."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.sampling.records import Records, record
from scoremh.sampling.store import State, Store
from scoremh.types import Kernel, Point, Trace

SEGMENT_FLOATS = 131_072  # noise drawn at once, per block
SAVE_SECONDS = 5.0  # between two parts of a stored run

Report = Callable[[int, int | None], None]  # transitions made, and how many were accepted; None where they were loaded


@dataclass(frozen=True)
class Plan:
    """What every block has to do.

    Args:
        kernel: Kernel to make steps of.
        draws: Number of draws to keep.
        warmup: Transitions before the first kept one.
        thin: Transitions per kept draw.
        store: Run on disk, or None.
        report: Called as transitions are made.
        stop: Set where another block failed: the others end after their segment.
    """

    kernel: Kernel
    draws: int
    warmup: int
    thin: int
    store: Store | None
    report: Report
    stop: threading.Event

    @property
    def total(self) -> int:
        """Transitions of every chain."""
        return self.warmup + self.draws * self.thin

    def kept(self, done: int) -> int:
        """Return how many draws are complete after so many transitions."""
        return max(0, done - self.warmup) // self.thin


@torch.inference_mode()
def run_block(plan: Plan, block: int, initial: Tensor, seed: int, records: Records) -> State:
    """Run one block of chains to the end, or to where it was stopped, and return its state.

    Args:
        plan: What to do.
        block: Number of the block.
        initial: Where its chains start.
        seed: Random seed of the block.
        records: Records of its chains, to be filled in.
    """
    generator = rng.seeded(seed, initial.device)
    state = _first_state(plan, block, initial, generator, records)
    least = plan.kernel.least_steps  # a segment is a multiple of it
    segment = max(1, SEGMENT_FLOATS // (initial.numel() * least)) * least
    saved, written = state.done, time.monotonic()
    run = plan.kernel.run or partial(step_by_step, plan.kernel)
    while state.done < plan.total and not plan.stop.is_set():
        steps = min(segment, plan.total - state.done)
        point, trace = run(state.point, steps, generator=generator)
        record(records, trace, state.done - plan.warmup, plan.thin)
        moves = int(trace.accepted.sum())
        state = state.after(point, trace, moves)
        plan.report(trace.accepted.numel(), moves)
        if plan.store is not None and (state.done == plan.total or time.monotonic() - written > SAVE_SECONDS):
            first, last = plan.kept(saved), plan.kept(state.done + plan.thin - 1)
            part = {name: rows[:, first:last] for name, rows in records.items()}
            plan.store.save(block, state, generator, first, part)
            saved, written = state.done, time.monotonic()
    return state


def _first_state(plan: Plan, block: int, initial: Tensor, generator: torch.Generator, records: Records) -> State:
    """Return the state that the store has of a block, or that at its beginning."""
    state = None if plan.store is None else plan.store.load(block, generator, records)
    if state is None:
        point = plan.kernel.init(initial)
        state = State(point, score_calls=0 if point.score is None else len(initial))
    plan.report(state.done * len(initial), None)
    return state


def step_by_step(kernel: Kernel, point: Point, steps: int, *, generator: torch.Generator) -> tuple[Point, Trace]:
    """Run a kernel that has no fused loop."""
    xs, moves = [], []
    for _ in range(steps):
        point, move = kernel.step(point, generator=generator)
        xs.append(point.x)
        moves.append(move)
    log_accept, accepted = torch.stack([m.log_accept for m in moves]), torch.stack([m.accepted for m in moves])
    counts = {name: sum(getattr(m, name) for m in moves) for name in ("score_calls", "factors", "clipped")}
    return point, Trace(torch.stack(xs), log_accept, accepted, **counts)

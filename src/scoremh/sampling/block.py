"""One block of chains, run to its end in segments of steps whose noise is drawn at once."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.sampling.jobs import Job, Report
from scoremh.sampling.records import Recorder, Records, empty_records
from scoremh.sampling.store import Block, State, Store
from scoremh.types import Kernel, Point, Trace

SEGMENT_FLOATS = 131_072  # noise drawn at once, per block
SAVE_SECONDS = 5.0  # between two states of a stored run


@dataclass(frozen=True)
class Plan:
    """What every block has to do.

    Args:
        kernel: Kernel to make steps of.
        draws: Number of draws to keep.
        warmup: Transitions before the first kept one.
        thin: Transitions per kept draw.
        store: Run on disk, or None.
    """

    kernel: Kernel
    draws: int
    warmup: int
    thin: int
    store: Store | None

    @property
    def total(self) -> int:
        """Transitions of every chain."""
        return self.warmup + self.draws * self.thin

    def empty_records(self, initial: Tensor) -> Records | None:
        """Return zeros for the records of chains; None where they go to the store."""
        return None if self.store is not None else empty_records(initial, self.draws)

    def run(self, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
        """Run one block of chains to the end, or to where it was stopped, and return its state without the points."""
        state = _run(self, job, rows, report, stopped)
        return state._replace(point=Point(job.initial.new_empty(0)))  # the last are a view of all that were traced


@torch.inference_mode()
def _run(plan: Plan, job: Job, rows: Records | None, report: Report, stopped: Callable[[], bool]) -> State:
    generator = rng.seeded(job.seed, job.initial.device)
    stored = None if plan.store is None else plan.store.block(job.block)
    state, recorder = _beginning(plan, job, rows, stored, generator)
    report(state.done * len(job.initial), None)
    least = plan.kernel.least_steps  # a segment is a multiple of it
    segment = max(1, SEGMENT_FLOATS // (job.initial.numel() * least)) * least
    written = time.monotonic()
    run = plan.kernel.run or partial(step_by_step, plan.kernel)
    while state.done < plan.total and not stopped():
        point, trace = run(state.point, min(segment, plan.total - state.done), generator=generator)
        recorder.add(trace, state.done)
        moves = int(trace.accepted.sum())
        state = state.after(point, trace, moves)
        report(trace.accepted.numel(), moves)
        if stored is not None and (state.done == plan.total or time.monotonic() - written > SAVE_SECONDS):
            _save(plan, stored, state, generator, recorder)
            written = time.monotonic()
    return state


def _save(plan: Plan, stored: Block, state: State, generator: torch.Generator, recorder: Recorder) -> None:
    """Write the state of a block, with the draws since its last chunk; at the end, the last chunk."""
    if state.done == plan.total and recorder.first < plan.draws:
        recorder.flush()
    started = max(0, -(-(state.done - plan.warmup) // plan.thin) - recorder.first)
    stored.save(state, generator, {name: rows[:, :started] for name, rows in recorder.rows.items()})


def _beginning(
    plan: Plan, job: Job, rows: Records | None, stored: Block | None, generator: torch.Generator
) -> tuple[State, Recorder]:
    """Return the state that the store has of a block, or that at its beginning, and where its draws go."""
    if stored is None:
        assert rows is not None
        return _first_state(plan.kernel, job.initial), Recorder(rows, plan.warmup, plan.thin)
    found, capacity = stored.load(generator), stored.store.layout.chunk_draws
    recorder = Recorder(empty_records(job.initial, capacity), plan.warmup, plan.thin, stored.write_chunk)
    if found is None:
        return _first_state(plan.kernel, job.initial), recorder
    state, tail = found
    recorder.first = len(stored.chunks) * capacity
    for name, part in tail.items():
        recorder.rows[name][:, : part.shape[1]] = part
    return state._replace(point=state.point.map(lambda part: part.to(job.initial.device))), recorder


def _first_state(kernel: Kernel, initial: Tensor) -> State:
    """Return the state at the beginning."""
    point = kernel.init(initial)
    return State(point, score_calls=0 if point.score is None else len(initial))


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

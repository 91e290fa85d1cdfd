"""What is recorded of a run: a tensor for every field of `Chains`, filled in as the steps are made."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh.types import Trace

Records = dict[str, Tensor]


def empty_records(initial: Tensor, draws: int) -> Records:
    """Return zeros for all that `Chains` holds."""
    shape = (len(initial), draws)
    counts = {name: initial.new_zeros(shape, dtype=torch.int32) for name in ("accepted", "nonfinite", "outside")}
    moving = {"draws": initial.new_zeros(*shape, *initial.shape[1:]), "acceptance_prob": initial.new_zeros(shape)}
    return moving | counts


@dataclass
class Recorder:
    """The records of a block of chains: all of them, or those of one chunk of draws, the earlier ones being written.

    Args:
        rows: Records of the draws in memory; they are zeros at first.
        warmup: Transitions that are not recorded.
        thin: Transitions per kept draw.
        write: Called with the number of a chunk and its records when it is full; None where `rows` has all draws.
        first: The draw that `rows` begins with.
    """

    rows: Records
    warmup: int
    thin: int
    write: Callable[[int, Records], None] | None = None
    first: int = 0

    def add(self, trace: Trace, done: int) -> None:
        """Add what happened after so many transitions."""
        origin, steps = done - self.warmup, len(trace.accepted)  # the step of the first kept draw is 0
        start, capacity = max(0, -origin), self.rows["draws"].shape[1]
        while start < steps:
            end = min(steps, (self.first + capacity) * self.thin - origin)
            x, log_accept, accepted = (part[start:end] for part in trace[:3])
            record(self.rows, Trace(x, log_accept, accepted), origin + start - self.first * self.thin, self.thin)
            if self.write is not None and origin + end == (self.first + capacity) * self.thin:
                self.flush()
            start = end

    def flush(self) -> None:
        """Write the draws in memory as a chunk, and begin the next."""
        assert self.write is not None
        capacity = self.rows["draws"].shape[1]
        self.write(self.first // capacity, finished(self.rows, self.thin))
        self.first += capacity
        for rows in self.rows.values():
            rows.zero_()


def finished(records: Records, thin: int) -> Records:
    """Return records with sums over the transitions of a draw made means, where they are means."""
    if "acceptance_prob" not in records:
        return records
    return records | {"acceptance_prob": records["acceptance_prob"] / thin}


def record(records: Records, trace: Trace, first: int, thin: int) -> None:
    """Add a trace to the records.

    Args:
        records: Records of the chains that were traced.
        trace: What happened at every step.
        first: Number of its first step after warm-up; negative within warm-up, which is not recorded.
        thin: Transitions per kept draw.
    """
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

"""What is recorded of a run: a tensor for every field of `Chains`, filled in as the steps are made."""

import math

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

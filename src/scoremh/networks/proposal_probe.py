"""The proposal that an acceptance was learned for, recognised by its answers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scoremh._shared import checks, detailed_balance
from scoremh._shared.probe import Probe
from scoremh.types import Proposal, Target

PROBED_SAMPLES = 6  # between which log q is computed, from each of three to one of the others


@dataclass(frozen=True)
class ProposalProbe:
    """A proposal: what it is called, and its log q between a few samples.

    Args:
        proposal: Its name and parameters.
        samples: Some of the training samples, flattened, one after the other.
        event: Shape of one of them.
        probe: log q between them: two proposals with the same answers are the same.
    """

    proposal: str
    samples: tuple[float, ...]
    event: tuple[int, ...]
    probe: Probe

    @classmethod
    def of(cls, target: Target, proposal: Proposal, samples: Tensor) -> "ProposalProbe":
        """Return the probe of a proposal at the first samples."""
        few = samples[:PROBED_SAMPLES].detach().double()
        probe = Probe.of(detailed_balance.log_q_between(target, proposal, few.to(samples)))
        return cls(checks.named(proposal), tuple(few.flatten().tolist()), tuple(few.shape[1:]), probe)

    def require(self, target: Target, proposal: Proposal, like: Tensor) -> None:
        """Refuse a proposal with other answers: its own, or because the target's score is another.

        Args:
            target: What the proposal needs to know of p.
            proposal: Proposal to compare with.
            like: Tensor whose dtype and device to compare in.
        """
        few = torch.tensor(self.samples, dtype=like.dtype, device=like.device).reshape(-1, *self.event)
        name = checks.named(proposal)
        Probe.of(detailed_balance.log_q_between(target, proposal, few)).require_same(
            self.probe,
            f"{self.proposal}, for which this acceptance was learned",
            f"{name} with another {'step or score' if name == self.proposal else 'log q'}",
            'Call fit_acceptance again, or use form="potential", which serves every proposal and step.',
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a JSON file holds of it."""
        lists = {"samples": list(self.samples), "event": list(self.event)}
        return {"proposal": self.proposal, **lists, "probe": self.probe.to_json()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ProposalProbe":
        """Return the probe that a JSON file holds."""
        samples, event = (tuple(fields[name]) for name in ("samples", "event"))
        return cls(fields["proposal"], samples, event, Probe.from_json(fields["probe"]))

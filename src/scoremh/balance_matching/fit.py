"""A learned acceptance function, with what is known of its training."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scoremh._shared import checks
from scoremh.networks import Form
from scoremh.training import Fit


@dataclass(eq=False, repr=False)
class AcceptanceFit(Fit):
    """A learned acceptance function. `Learned(fit)` is the rule it makes.

    Args:
        net: A `Free`, `Antisymmetric` or `Potential` form, called with samples.
        history: From "step", "loss", "held_out", "rate", and the terms of `BalanceMatching`, to a number per check of
            the held-out loss.
        recipe: How it was trained.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Time it took.
        best: Step whose weights these are.
        loss: What was minimised, as text.
        proposal: Proposal it was trained with, as text.
    """

    own_fields: ClassVar[tuple[str, ...]] = ("loss", "proposal")

    net: Form
    loss: str
    proposal: str

    def __repr__(self) -> str:
        """Show what was learned, for which proposal, how long it took, and how well it went."""
        serves = "no other proposal than" if self.net.one_proposal else "any proposal, trained with"
        lines = [f"{type(self.net).__name__.lower()} acceptance by {self.loss}, for {serves} {self.proposal}"]
        lines.append(super().__repr__())
        if self.net.one_proposal:  # else its pairs are no moves
            lines.append(f"mean of a(x', x) {self.history['acceptance'][-1]:.3f} over its pairs")
        if self.history["clipped"][-1]:
            lines.append(f"{self.history['clipped'][-1]:.1%} of gradients clipped")
        if errors := self.history.get("anchors"):
            lines.append(f"mean loss of log p at anchors {errors[-1]:.3g}")
        return "\n".join(lines)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p at x, up to a constant, as a potential has it."""
        potential = self.net.potential
        if potential is None:
            fix = 'Fit one with form="potential".'
            raise ValueError(checks.message("a potential", f"an acceptance of {type(self.net).__name__} form", fix))
        checks.events(x)
        with checks.explained():
            return potential(x)

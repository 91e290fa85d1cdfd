"""Rules learned by Score Balance Matching."""

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from scoremh._shared import checks
from scoremh._shared.detailed_balance import log_q_ratio
from scoremh._shared.files import fingerprint
from scoremh.acceptance.ratio import BalancedRule
from scoremh.networks import Form
from scoremh.training import Fit
from scoremh.types import Need, Point, Proposal, Target

LearnedBalance = Literal["direct", "metropolis", "barker"]


@dataclass(frozen=True, repr=False, eq=False)
class Learned(BalancedRule):
    """Accept with the probability of a network that `fit_acceptance` trained.

    A network that was trained for one proposal and step is refused with another; MALA with another score is another
    proposal. A potential serves all of them: it stands for a log density (up to a constant, also where the proposal
    asks for one), is evaluated once per candidate, and its value at the current point is kept.

    Args:
        net: What `fit_acceptance` returned, its network, or any `net(proposed, current)` that answers log a.
        balance: "direct" accepts with a(x', x) as it was trained (the paper). "metropolis" and "barker" take
            a(x', x) / a(x, x') for the ratio r: Metropolis accepts more, and the scale of a does not matter. For an
            antisymmetric form and a potential "direct" is "barker".
    """

    net: nn.Module
    balance: LearnedBalance = "direct"

    def __init__(self, net: nn.Module | Fit, balance: LearnedBalance = "direct") -> None:
        network, fix = net.net if isinstance(net, Fit) else net, "Pass what fit_acceptance returned."
        checks.kind(network, Form if isinstance(net, Fit) else nn.Module, "a network for an acceptance", fix)
        checks.one_of(balance, get_args(LearnedBalance), "balance")
        object.__setattr__(self, "net", network)
        object.__setattr__(self, "balance", balance)

    def __repr__(self) -> str:
        """Show the form, a hash of the weights, and the balance."""
        weights = "".join(fingerprint(tensor) for tensor in self.net.state_dict().values())
        name = f"<{type(self.net).__name__} {hashlib.sha256(weights.encode()).hexdigest()[:8]}>"
        return f"Learned({name})" if self.balance == "direct" else f"Learned({name}, balance={self.balance!r})"

    @property
    def form(self) -> Form:
        """The network as a form: the free one where it is none itself."""
        return Form.of(self.net)

    @property
    def needs(self) -> frozenset[Need]:
        """Nothing of the target; a potential is a log density of its own."""
        return frozenset() if self.form.potential is None else frozenset({"log_density"})

    def known(self, target: Target) -> Target:
        """Return the target with a potential for its log density."""
        potential = self.form.potential
        return target if potential is None else target._replace(log_density=potential)

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that the network was not learned for."""
        self.form.require(target, proposal)

    def log_ratio(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a(x', x) - log a(x, x')."""
        potential = self.form.potential
        kept = potential is not None and target.log_density == potential  # by a kernel, from `known`
        if not kept or current.log_density is None or proposed.log_density is None:
            return self.form.log_ratio(current, proposed, proposal=proposal)
        return proposed.log_density - current.log_density + log_q_ratio(proposal, current, proposed)

    def log_accept(
        self, current: Point, proposed: Point, *, target: Target, proposal: Proposal
    ) -> Float[Tensor, " chain"]:
        """Return log a, as trained or balanced."""
        with checks.explained():
            if self.balance == "direct" and self.form.potential is None:
                log_accept: Tensor = self.net(proposed.x, current.x)
                return log_accept
            return super().log_accept(current, proposed, target=target, proposal=proposal)

r"""The forms in which an acceptance function can be learned.

| form | log a(x', x) | D_a = log a(x', x) - log a(x, x') |
|---|---|---|
| `Free` (the paper's) | logsigmoid f(x', x) | any; its scale is free |
| `Antisymmetric` | logsigmoid g, with g = f(x', x) - f(x, x') | g |
| `Potential` | logsigmoid g, with g = phi(x') - phi(x) + log q(x \| x') - log q(x' \| x) | g |

The first two belong to one proposal and its step. A potential is a log density up to a constant: it serves all.
All that differs between forms is in these classes; the default loss of each is in `balance_matching.presets`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh._shared import checks, detailed_balance
from scoremh.networks.acceptances import AcceptanceMLP, PerChain, Points, PotentialMLP
from scoremh.networks.proposal_probe import ProposalProbe
from scoremh.types import LogDensityFn, Point, Proposal, Target

__all__ = ["FORMS", "Antisymmetric", "Form", "Free", "Potential"]

# First logit of a free form. Where log a is near 0 it is flat, and a form that begins there may never learn: it begins
# at a = 0.007 instead, where log a is the logit itself, and its scale is pulled up as it learns.
FIRST_LOGIT = -5.0


class Regression(NamedTuple):
    """Both sides of the regression of Score Balance Matching over pairs, and log a in both orders."""

    learned: Float[Tensor, "pair gradient"]
    """Gradient of D_a with respect to (x, x'), flattened, but for terms that both sides have."""
    wanted: Float[Tensor, "pair gradient"]
    """Gradient of log r, but for the same terms."""
    log_accept: Float[Tensor, " pair"]
    log_accept_back: Float[Tensor, " pair"]


class Form(nn.Module, ABC):
    """An acceptance function in one of several forms.

    Args:
        net: What is learned.
        made_for: The proposal that the acceptance was learned for, where it belongs to one.
    """

    one_proposal: ClassVar[bool] = True
    """Whether the acceptance belongs to one proposal and its step."""
    free_scale: ClassVar[bool] = False
    """Whether a / M is as good as a, so that entropy or scale may be asked for."""
    from_points: ClassVar[bool] = False
    """Whether it learns from points: a pair has two of them, and half as many pairs are drawn."""
    call: ClassVar[str] = "net(proposed, current)"
    """How its network is called, for errors."""

    def __init__(self, net: nn.Module, made_for: ProposalProbe | None = None) -> None:
        super().__init__()
        self.net, self.made_for = net, made_for

    @staticmethod
    def of(net: nn.Module) -> "Form":
        """Return a network as a form: itself where it is one, else the free form of it."""
        return net if isinstance(net, Form) else Free(net)

    @classmethod
    @abstractmethod
    def network(cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int) -> nn.Module:
        """Return the network that this form has by default, of other sizes where they are given."""

    @abstractmethod
    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), in one forward."""

    @property
    def potential(self) -> LogDensityFn | None:
        """The log density up to a constant that the form stands for, or None."""
        return None

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return the log r that the form stands for."""
        forth, back = self.log_accepts(current, proposed, proposal=proposal)
        return forth - back

    def log_density_change(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return what the form takes log p(x') - log p(x) for."""
        ratio = self.log_ratio(current, proposed, proposal=proposal)
        return ratio - detailed_balance.log_q_ratio(proposal, current, proposed)

    def regression(self, current: Point, proposed: Point, *, proposal: Proposal) -> Regression:
        """Return what the loss compares; both points are leaves."""
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            forth, back = self.log_accepts(current, proposed, proposal=proposal)
            ends = current.x, proposed.x
            gradients = torch.autograd.grad((forth - back).sum(), ends, create_graph=learning)
            wanted = detailed_balance.wanted_gradient(proposal, current, proposed)
        return Regression(torch.cat([gradient.flatten(1) for gradient in gradients], 1), wanted, forth, back)

    def inputs(self, x: Points) -> tuple[Points, ...]:
        """Return points to try the network with, made of samples."""
        return x.roll(1, 0), x

    def require_answer(self, answer: Tensor) -> None:
        """Refuse an answer that the form cannot be made of; its shape and type are right."""
        return

    def require(self, target: Target, proposal: Proposal) -> None:
        """Refuse a proposal that the acceptance was not learned for; it has what it needs of the target."""
        if self.made_for is not None:
            self.made_for.require(target, proposal, next(self.parameters(), torch.zeros(())))


class Free(Form):
    """The paper's form: a network for log a itself, `net(proposed, current)`."""

    free_scale = True

    @classmethod
    def network(
        cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int
    ) -> AcceptanceMLP:
        """Return a network of pairs at its first logit."""
        net = Antisymmetric.network(event, generator=generator, **sizes)
        nn.init.constant_(net.last.bias, FIRST_LOGIT)
        return net

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        log_accept: Tensor = self.net(proposed, current)
        return log_accept

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), in one forward."""
        return detailed_balance.log_accepts(self.net, proposed.x, current.x)

    def require_answer(self, answer: Tensor) -> None:
        """Refuse an acceptance above 1."""
        if bool((answer > 0).any()):
            fix = "End the network with torch.nn.functional.logsigmoid."
            raise ValueError(checks.message(f"{self.call} to answer log a, at most 0", float(answer.max()), fix))


class Antisymmetric(Form):
    """A network for half of the log ratio: the other half is itself, with the points exchanged."""

    @classmethod
    def network(
        cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int
    ) -> AcceptanceMLP:
        """Return a network of pairs."""
        return AcceptanceMLP(event, **{"hidden": 128, "blocks": 2} | sizes, generator=generator)

    def forward(self, proposed: Points, current: Points) -> PerChain:
        """Return log a(proposed, current)."""
        return logsigmoid(self._ratio(proposed, current))

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a(x', x) and log a(x, x'), in one forward."""
        ratio = self._ratio(proposed.x, current.x)
        return logsigmoid(ratio), logsigmoid(-ratio)

    def _ratio(self, proposed: Points, current: Points) -> PerChain:
        """Return g(proposed, current) = -g(current, proposed)."""
        half = getattr(self.net, "logit", self.net)
        forth, back = detailed_balance.log_accepts(half, proposed, current)
        return forth - back


class Potential(Form):
    """A network for log p up to a constant."""

    one_proposal = False
    from_points = True
    call = "net(x)"

    @classmethod
    def network(cls, event: tuple[int, ...], *, generator: torch.Generator | None = None, **sizes: int) -> PotentialMLP:
        """Return a network of points."""
        return PotentialMLP(event, **sizes, generator=generator)

    def log_density(self, x: Points) -> PerChain:
        """Return phi(x)."""
        phi: Tensor = self.net(x)
        return phi

    forward = log_density

    @property
    def potential(self) -> LogDensityFn:
        """The log density phi, up to a constant."""
        return self.log_density

    def log_accepts(self, current: Point, proposed: Point, *, proposal: Proposal) -> tuple[PerChain, PerChain]:
        """Return log a in both orders by Barker's rule."""
        ratio = self.log_ratio(current, proposed, proposal=proposal)
        return logsigmoid(ratio), logsigmoid(-ratio)

    def log_ratio(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return phi(x') - phi(x) + log q(x | x') - log q(x' | x)."""
        change = self.log_density_change(current, proposed, proposal=proposal)
        return change + detailed_balance.log_q_ratio(proposal, current, proposed)

    def log_density_change(self, current: Point, proposed: Point, *, proposal: Proposal) -> PerChain:
        """Return phi(x') - phi(x)."""
        return self.log_density(proposed.x) - self.log_density(current.x)

    def value_and_gradient(self, x: Points) -> tuple[PerChain, Points]:
        """Return phi(x) and its gradient: the network's own closed form, or by differentiation."""
        if own := getattr(self.net, "value_and_gradient", None):
            phi, gradient = own(x)
            return phi, gradient
        learning = torch.is_grad_enabled()
        with torch.enable_grad():
            points = x.detach().requires_grad_()
            phi = self.net(points)
            (gradient,) = torch.autograd.grad(phi.sum(), points, create_graph=learning)
        return phi, gradient

    def regression(self, current: Point, proposed: Point, *, proposal: Proposal) -> Regression:
        """Return the gradients of phi(x') - phi(x) and of log p(x') - log p(x): those of log q cancel."""
        phi, gradient = self.value_and_gradient(torch.cat([current.x, proposed.x]).detach())
        before, after = phi.chunk(2)
        with torch.no_grad():  # a bounded step may allow neither direction, and its log ratio is NaN
            log_q = detailed_balance.log_q_ratio(proposal, current, proposed).nan_to_num()
        at_current, at_proposed = gradient.flatten(1).chunk(2)
        ratio = after - before + log_q
        return Regression(
            torch.cat([-at_current, at_proposed], 1),
            detailed_balance.score_gradient(current, proposed),
            logsigmoid(ratio),
            logsigmoid(-ratio),
        )

    def inputs(self, x: Points) -> tuple[Points, ...]:
        """Return the samples themselves."""
        return (x,)


FORMS: Mapping[str, type[Form]] = {"free": Free, "antisymmetric": Antisymmetric, "potential": Potential}

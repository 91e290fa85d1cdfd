r"""Score Balance Matching: learning an acceptance function from a score alone (the paper's sections 3.3 and 4).

The loss is the mean over pairs (x, x') of

    | grad D_a(x', x) - (-s(x), s(x')) - grad [log q(x | x') - log q(x' | x)] |^2  +  lambda H(a(x', x))

with grad with respect to (x, x'), D_a = log a(x', x) - log a(x, x'), and H(a) = a log a + (1 - a) log(1 - a). The first
term is 0 where a is balanced, and it does not see the scale of a (Proposition 3): a / M is as good. H, the *negative*
entropy, is least at a = 1/2, and shall keep a free form from sinking to 0 (the paper's remedy). It pulls the ratio
towards 1 as well, so that a is out of balance by an amount that grows with lambda, and lets go of an a that has sunk.
`scale` is another remedy: it pulls the product a(x', x) a(x, x'), and nothing else, to where Barker's rule has it for
the same ratio. The other forms need neither.

A potential phi stands for D_a = phi(x') - phi(x) + log q(x | x') - log q(x' | x). The proposal's terms cancel, and what
is left is | grad phi(x) - s(x) |^2 + | grad phi(x') - s(x') |^2: an ordinary regression, on points.

Values of log p may join the gradients (`fit_acceptance(..., anchors=...)`); `balance_matching.fit` has the term.
"""

from scoremh.balance_matching.fit import (
    MATCHING,
    RECIPE,
    AcceptanceFit,
    FormName,
    fit_acceptance,
)
from scoremh.balance_matching.losses import BalanceMatching, Pairs

__all__ = [
    "MATCHING",
    "RECIPE",
    "AcceptanceFit",
    "BalanceMatching",
    "FormName",
    "Pairs",
    "fit_acceptance",
]

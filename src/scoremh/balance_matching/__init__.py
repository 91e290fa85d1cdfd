r"""Score Balance Matching: learning an acceptance function from a score alone (the paper's sections 3.3 and 4).

The loss is the mean over pairs (x, x') of

    | grad D_a(x', x) - (-s(x), s(x')) - grad [log q(x | x') - log q(x' | x)] |^2  +  lambda H(a(x', x))

with gradients with respect to (x, x'), D_a = log a(x', x) - log a(x, x'), and H(a) = a log a + (1 - a) log(1 - a). The
first term is 0 if a is in balance. It does not depend on the scale of a (Proposition 3): a / M is as good. The paper
adds H, the *negative* entropy, which is smallest at a = 1/2, to keep a free form from decreasing to 0. But H also pulls
the ratio towards 1, so that the error in balance grows with lambda, and it has no effect on an a that is already near
0. `scale` is an alternative: it pulls only the product a(x', x) a(x, x'), to its value under Barker's rule for the same
ratio. The other forms need neither term.

For a potential phi, D_a = phi(x') - phi(x) + log q(x | x') - log q(x' | x). The terms of the proposal cancel, and an
ordinary regression on points remains:

    | grad phi(x) - s(x) |^2  +  | grad phi(x') - s(x') |^2

Values of log p can be added to the loss (`fit_acceptance(..., anchors=...)`); the term is in `balance_matching.fit`.
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

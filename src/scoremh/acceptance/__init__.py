r"""Acceptance rules a(x', x): exact, always, expanded from the score, integrated from it, or learned.

With `v = x' - x`, every rule but `Always` estimates

    log r(x', x) = D + log q(x | x') - log q(x' | x),    D = log p(x') - log p(x) = int_0^1 s(x + t v) . v dt

and accepts with `min(1, r)` (Metropolis) or `r / (1 + r)` (Barker). Metropolis accepts more of the same moves (Peskun).

| rule | D | score calls beside s(x), s(x') | error in the step eps |
|---|---|---|---|
| `Exact()` | log p(x') - log p(x) | 0 | 0 |
| `Taylor(1)` | s(x).v | 0 | eps^2, one-sided |
| `Taylor(2)` | s(x).v + v.J(x)v / 2 | one JVP | eps^3, one-sided |
| `Taylor(1, average=True)` | (s(x) + s(x')).v / 2 | 0 | eps^3 |
| `Taylor(2, average=True)` | the same + v.(J(x) - J(x'))v / 4 | two JVPs | eps^3, twice the constant |
| `LineIntegral("trapezoid")` | as `Taylor(1, average=True)` | 0 | eps^3 |
| `LineIntegral("simpson")` | (s(x) + 4 s(x + v/2) + s(x')).v / 6 | 1 | eps^5 |
| `LineIntegral("gauss", nodes=k)` | Gauss-Legendre | k, in one call | eps^(2k+1) |
| `LineIntegral("adaptive")` | Romberg, refined where the decision could flip | 1 and a few | as far as it matters |
| `LineIntegral("exact")` | Simpson, times a Poisson product over what it misses | 1 and a few | 0 |
| `ThroughNoise()` | log p along the noise axis | scores and divergences at 8 noise levels | that of the scores |
| `Learned(fit)` | a network gives a, or r, or log p (`fit_acceptance`) | 0 | that of its training |

The one-sided rules are not antisymmetric in (x, x'): r(x', x) r(x, x') is not 1, and not even one pair is balanced.
"""

from scoremh.acceptance.rules import Always, BalancedRule, Exact, Learned, LineIntegral, RatioRule, Taylor, ThroughNoise

__all__ = [
    "Always",
    "BalancedRule",
    "Exact",
    "Learned",
    "LineIntegral",
    "RatioRule",
    "Taylor",
    "ThroughNoise",
]

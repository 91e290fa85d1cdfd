"""Distributions with exact score, log density and sampler, and ways to make a `Target` from what is at hand.

- `Gaussian`: N(m, C), score = -C^-1 (x - m).
- `GaussianMixture`: sum_k w_k N(m_k, C_k), score = sum_k P(k | x) score_k(x).
- `StudentT`: p(x) proportional to (1 + q / df)^(-(df + d) / 2), where q = (x - m)' S^-1 (x - m).
- `GeneralizedExtremeValue`: P(X <= x) = exp(-exp(-y)), where y = log(1 + xi z) / xi and z = (x - mu) / sigma.
- `Banana`: x1 ~ N(0, width^2), x2 | x1 ~ N(curvature (x1^2 - width^2), 1).
- `Funnel`: v = x[0] ~ N(0, width^2), x[i] | v ~ N(0, exp(v)).

Log densities are normalised. A matrix C = L L' enters through its whitening W = L^-1: with u = W (x - m), the quadratic
form is |u|^2, its gradient 2 W' u, and x = m + L u makes draws of standard normal u.

Parameters are tensors, lists or numbers; with no tensor among them they take torch's default dtype. `sample` answers in
their dtype and device, `score` and `log_density` in those of x.
"""

from scoremh._shared.support import Box, box
from scoremh.targets.combinations import from_log_density, truncate
from scoremh.targets.curved import Banana, Funnel
from scoremh.targets.gaussians import Gaussian, GaussianMixture
from scoremh.targets.heavy_tails import GeneralizedExtremeValue, StudentT

__all__ = [
    "Banana",
    "Box",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "GeneralizedExtremeValue",
    "StudentT",
    "box",
    "from_log_density",
    "truncate",
]

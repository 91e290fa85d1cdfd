"""Distributions with exact score, log density and sampler, and targets made from a log density or a support.

| name | distribution |
|---|---|
| `Gaussian` | N(m, C) |
| `GaussianMixture` | sum_k w_k N(m_k, C_k) |
| `StudentT` | multivariate Student t: tails like a power of |x| |
| `GeneralizedExtremeValue` | block maxima: Frechet, Gumbel and Weibull |
| `Banana` | a normal distribution bent along a parabola |
| `Funnel` | Neal's funnel: one coordinate is the log variance of the others |
| `from_log_density` | any log density; its score by automatic differentiation |
| `truncate`, `box` | a target restricted to a support; a support between two bounds |
| `product`, `posterior`, `temper` | parts multiplied, prior times likelihood, a power: known parts stay exact |

Log densities are normalised. Parameters are tensors, lists or numbers; with no tensor among them they take torch's
default dtype. `sample` returns draws of their dtype and device, `score` and `log_density` values of those of x.
"""

from scoremh.targets.combinations import Product, from_log_density, posterior, product, temper, truncate
from scoremh.targets.distributions import Banana, Funnel, Gaussian, GaussianMixture, GeneralizedExtremeValue, StudentT
from scoremh.types import Box, box

__all__ = [
    "Banana",
    "Box",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "GeneralizedExtremeValue",
    "Product",
    "StudentT",
    "box",
    "from_log_density",
    "posterior",
    "product",
    "temper",
    "truncate",
]

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
| `linear_observation` | the likelihood of y = A x + noise |
| `product`, `posterior`, `temper` | product of parts, prior times likelihood, power: log densities stay exact |

Log densities are normalised. Parameters are tensors, lists or numbers; without a tensor among them they get torch's
default dtype. `sample` returns draws with the dtype and device of the parameters, `score` and `log_density` return
values with the dtype and device of x.
"""

from scoremh.targets.combinations import Posterior, Product, from_log_density, posterior, product, temper, truncate
from scoremh.targets.distributions import Banana, Funnel, Gaussian, GaussianMixture, GeneralizedExtremeValue, StudentT
from scoremh.targets.likelihoods import Likelihood, LinearObservation, linear_observation
from scoremh.types import Box, box

__all__ = [
    "Banana",
    "Box",
    "Funnel",
    "Gaussian",
    "GaussianMixture",
    "GeneralizedExtremeValue",
    "Likelihood",
    "LinearObservation",
    "Posterior",
    "Product",
    "StudentT",
    "box",
    "from_log_density",
    "linear_observation",
    "posterior",
    "product",
    "temper",
    "truncate",
]

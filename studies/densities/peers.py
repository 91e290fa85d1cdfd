"""Log densities by what one would use instead: a kernel density estimate, and a neural spline flow."""

from dataclasses import replace

import torch
from torch import Tensor

from scoremh.coordinates import Affine
from scoremh.score_matching import LONG_RECIPE
from studies import outsiders
from studies.densities.fits import timed
from studies.framework import Record

TRIAL = 200  # steps that tell how long one takes, with a look at held-out samples as in every 200


def kernel_log_density(x: Tensor, rows: Tensor) -> Tensor:
    """Return the log density of rows by a Gaussian kernel density estimate of samples, in standard coordinates."""
    from sklearn.neighbors import KernelDensity

    coordinates = Affine.whitening(x)
    u, v = coordinates.inverse(x), coordinates.inverse(rows)
    estimate = KernelDensity(bandwidth=outsiders.best_bandwidth(u)).fit(u.numpy())
    return torch.from_numpy(estimate.score_samples(v.numpy())) - coordinates.log_det(v)


def spline_log_density(x: Tensor, rows: Tensor, *, seconds: float, generator: torch.Generator) -> tuple[Tensor, Record]:
    """Return the log density of rows by a neural spline flow, and how long its training was.

    Args:
        x: Samples to learn from.
        rows: Where to evaluate it.
        seconds: CPU seconds that the training may take.
        generator: Random number generator; the same seed gives the same weights.
    """
    coordinates = Affine.whitening(x)
    u, v = coordinates.inverse(x), coordinates.inverse(rows)
    _, once = timed(lambda: outsiders.trained_flow(u, replace(LONG_RECIPE, steps=TRIAL), generator))
    steps = max(TRIAL, round(TRIAL * seconds / once))
    fit, taken = timed(lambda: outsiders.trained_flow(u, replace(LONG_RECIPE, steps=steps), generator))
    with torch.no_grad():
        log_p = torch.cat([fit.net().log_prob(part) for part in v.split(1000)])
    return log_p - coordinates.log_det(v), {"steps": fit.history["step"][-1], "seconds": taken}

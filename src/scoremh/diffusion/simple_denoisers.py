r"""Denoisers that need no network, only samples of the data: what every network has to match.

With x = x0 + sigma z, E[x0 | x] has the least squared error of all functions of x: less than each of these.

| denoiser | D(x) | best of |
|---|---|---|
| `linear` | m + v (x - m) / (v + sigma^2) | those that shrink all directions alike; v is the mean variance |
| `wiener` | m + C (C + sigma^2)^-1 (x - m) | the linear ones |
| `kernel` | sum_i w_i x_i,  w_i ~ exp(-\|x - x_i\|^2 / (2 sigma^2)) | all of them, where samples are dense |

In the last two, no point is denoised with its own sample: m and C are those of the other half of the samples, and the
sum is over the others.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "sample d"]


def linear(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised by the best factor for all directions."""
    mean = samples.mean(0)
    variance = float((samples - mean).square().mean())
    return torch.lerp(mean.expand_as(x), x, variance / (variance + sigma**2))


def wiener(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised by the mean and the covariance of the other half of them."""
    middle = len(samples) // 2
    halves = (samples[middle:], x[:middle]), (samples[:middle], x[middle:])
    return torch.cat([_wiener(seen, noisy, sigma) for seen, noisy in halves])


def _wiener(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return C (C + sigma^2)^-1 (x - m) + m, with a matrix over the samples: there may be more coordinates."""
    mean = samples.mean(0)
    rows = (samples - mean) / math.sqrt(max(1, len(samples) - 1))  # C is their rows^T rows
    gram = rows @ rows.T
    gram.diagonal().add_(sigma**2)
    shares: Tensor = torch.linalg.solve(gram, rows @ (x - mean).T)
    return mean + shares.T @ rows


def kernel(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised by a mean of the others, weighted by how likely x is from each."""
    log_weights = -torch.cdist(x, samples).square() / (2 * sigma**2)
    own = torch.cdist(samples, samples) == 0  # and exact copies of it
    return log_weights.masked_fill(own, -math.inf).softmax(1).nan_to_num() @ samples


def least_error(samples: Float[Tensor, "sample *event"], x: Float[Tensor, "sample *event"], sigma: float) -> float:
    """Return the mean squared error of the best of these denoisers on noisy samples.

    Args:
        samples: Samples of the data.
        x: The same with noise.
        sigma: Standard deviation of the noise.
    """
    rows, noisy = samples.flatten(1), x.flatten(1)
    return min(float((denoise(rows, noisy, sigma) - rows).square().mean()) for denoise in (linear, wiener, kernel))

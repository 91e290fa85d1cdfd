"""How many independent draws chains are worth."""

import numpy as np

from benchmarks.peers.law import Numbers


def effective_share(values: Numbers) -> float:
    """Return effective draws per draw of chains `(chain, draw)` from the distribution itself.

    One over the integrated autocorrelation time: autocovariances about the mean of all chains, their sum cut by
    Geyer's initial monotone sequence.
    """
    draws = values.shape[1]
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * draws, axis=1)
    covariance = np.fft.irfft((np.abs(spectrum) ** 2).mean(0))[:draws] / np.arange(draws, 0, -1)
    if not covariance[0] > 0:
        return 0.0
    correlation = covariance / covariance[0]
    pairs = correlation[: draws // 2 * 2].reshape(-1, 2).sum(1)
    end = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    time = 2 * np.minimum.accumulate(pairs[:end]).sum() - 1
    return float(1 / max(time, 1 / draws))


def worst_share(values: Numbers) -> float:
    """Return the least share of effective draws over functionals, from `(draw, chain, functional)`."""
    return min(effective_share(values[..., k].T) for k in range(values.shape[-1]))

r"""Is a network wrapped as what it is? What the score of noise says.

Where a distribution has variance v, its denoiser D = x + sigma^2 s follows x with slope v / (v + sigma^2) at levels
above its own width, whatever its shape, and always with a positive one. So the score of x = +-k z, k^2 = v + sigma^2,
is read at some levels; the odd part in x is free of the mean of the data.

| test | where | must be |
|---|---|---|
| score | highest level | -x / k^2, within `SCORE_ERROR` |
| direct | highest level, for networks that answer D there | slope of D along z, within `DIRECT_SLOPE` sqrt(v) |
| variance | 3 sqrt(v), for the same networks 10 sqrt(v) too | the v that the slope of D says, within `VARIANCES` v |
| slope | 0.02 sqrt(v) | slope of D above `LEAST_SLOPE` |
| samples | sqrt(v), and sqrt(v) / 2 but for x0 and denoisers | squared error of D over a linear one: `LINEAR_EXCESS` |
| answer | sqrt(v), where the network answers nearly 0 | the same over the best simple denoiser's: `SILENT_EXCESS` |

A network that is told times of another kind may answer nearly 0, which read as v is right for N(0, I), or its input,
which read as a velocity is a linear denoiser too. Noise alone cannot tell these; samples do. The simple denoisers are
those of `scoremh.diffusion.simple_denoisers`. What cannot be told at all: silence where the data are N(0, I).
"""

import itertools
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from scoremh._shared import rng
from scoremh.diffusion import predictions, simple_denoisers
from scoremh.diffusion.predictions import Prediction
from scoremh.diffusion.times import Time, Timesteps, flow_time, from_alphas_cumprod

ROWS = 8  # points of noise, each with its opposite; more where an axis of the event is as long as all of them
SCORE_ERROR = 0.3  # relative; networks reach a few per cent
DIRECT_SLOPE = 0.5  # an epsilon network has 1 / sqrt(v), a denoiser sqrt(v) / k
VARIANCES = 0.01, 2.5  # the lower one for a variance left at 1, and images in [0, 1] (0.07) that vary in few directions
LEAST_SLOPE = 0.1  # a denoiser has nearly 1 at low noise
LINEAR_EXCESS = 1.1  # a denoiser has less than 1, but for what it has not learned
SAMPLE_LEVELS = 0.5, 1.0  # in units of sqrt(v): a velocity that is its input is nearly right at one of them at most
SILENT_EXCESS = 1.03  # for what chance does to the errors on 256 samples; where nothing is answered nothing was learned
LEAST_ANSWER = 0.01  # root mean square of the odd part of a network's output at 3 sqrt(v): less says nothing
MAX_SAMPLES = 256
NOISE_ANSWERS = predictions.EPSILON, predictions.SCORE
DATA_ANSWERS = predictions.DENOISER, predictions.X0


class WrappingWarning(UserWarning):
    """A network does not look like what it was wrapped as."""


class Reading(NamedTuple):
    """One way to read a network: what it predicts, and what it is told of the noise level."""

    prediction: Prediction
    time: Time


class Probe(NamedTuple):
    """Everything the tests need beside the reading: levels, the data's variance, noise, and samples if there are."""

    score: Callable[[Reading, Tensor, float], Tensor]
    noise_range: tuple[float, float]
    variance: float
    noise: Tensor
    samples: Tensor | None


def check_wrapping(
    score: Callable[[Reading, Tensor, float], Tensor],
    own: Reading,
    *,
    noise_range: tuple[float, float],
    variance: float,
    like: Tensor,
    samples: Tensor | None = None,
    other_times: bool = True,
) -> str | None:
    """Return what is wrong with the reading of a network, and warn of it; None where nothing is.

    Args:
        score: Function of a reading, points and a noise level that returns the score.
        own: How the network is read.
        noise_range: Lowest and highest noise level.
        variance: Variance of the data; that of the samples where they are given.
        like: Tensor with the shape of an event, its dtype and its device.
        samples: Samples of the data, `(sample, *event)`.
        other_times: Whether the network may be called with other times than the indices of its timesteps.
    """
    rows = next(n for n in itertools.count(ROWS) if 2 * n not in like.shape)
    noise = rng.normal((rows, *like.shape), like, rng.seeded(0, like.device))
    if samples is not None:
        samples = samples[:MAX_SAMPLES]
        variance = float((samples - samples.mean(0)).square().mean())
    probe = Probe(score, noise_range, variance, noise, samples)
    with torch.no_grad():
        found = misfits(probe, own)
        if max(found.values()) <= 1:
            return None
        message = _message(probe, own, found, _better_reading(probe, own, other_times))
    warnings.warn(message, WrappingWarning, stacklevel=5)
    return message


def misfits(probe: Probe, reading: Reading) -> dict[str, float]:
    """Return how far a reading is from what the tests ask, by their names; above 1 is too far, infinite for NaN."""
    low, high = probe.noise_range
    width, k = math.sqrt(probe.variance), math.sqrt(probe.variance + high**2)
    direct = reading.prediction not in NOISE_ANSWERS
    error, slope = _response(probe, reading, high)
    found = {"score": error / SCORE_ERROR}
    if direct:
        found["direct"] = abs(slope * k - probe.variance / k) / (DIRECT_SLOPE * width)
    for ratio in (3, 10) if direct else (3,):
        sigma = ratio * width
        if low <= sigma <= high:
            slope = _response(probe, reading, sigma)[1]
            found[f"variance at {sigma:.3g}"] = _variance_misfit(_said(slope, sigma) / probe.variance)
    lowest = max(low, 0.02 * width)
    slope = _response(probe, reading, lowest)[1]
    found["slope"] = LEAST_SLOPE / slope if slope > 0 else math.inf
    if probe.samples is not None:
        found |= _sample_misfits(probe, reading, probe.samples)
    return {name: value if math.isfinite(value) else math.inf for name, value in found.items()}


def _odd_part(probe: Probe, reading: Reading, sigma: float) -> tuple[Tensor, Tensor]:
    """Return noise as wide as the data at a level, and the odd part of the score there."""
    x = math.sqrt(probe.variance + sigma**2) * probe.noise
    up, down = probe.score(reading, torch.cat([x, -x]), sigma).chunk(2)
    return x, (up - down) / 2


def _response(probe: Probe, reading: Reading, sigma: float) -> tuple[float, float]:
    """Return the relative error of the odd part of the score of noise, and the slope of D along x."""
    x, odd = _odd_part(probe, reading, sigma)
    expected = -x / (probe.variance + sigma**2)
    slope = 1 + sigma**2 * float((odd * x).sum() / x.square().sum())
    return float((odd - expected).norm() / expected.norm()), slope


def _said(slope: float, sigma: float) -> float:
    """Return the variance v for which v / (v + sigma^2) is this slope."""
    return slope * sigma**2 / (1 - slope) if slope < 1 else math.inf


def _variance_misfit(ratio: float) -> float:
    """Return how far a ratio of variances is from 1, in units of the bounds on either side."""
    if not 0 < ratio < math.inf:
        return math.inf
    return math.log(ratio) / math.log(VARIANCES[1] if ratio > 1 else VARIANCES[0])


def _sample_misfits(probe: Probe, reading: Reading, samples: Tensor) -> dict[str, float]:
    """Return how far the errors of D on noisy samples are from what the tests ask."""
    width, found = math.sqrt(probe.variance), {}
    # where a network answers D, its error is that of D, at low noise as at high; that of others shrinks with sigma
    for ratio in SAMPLE_LEVELS[reading.prediction in DATA_ANSWERS :]:
        sigma, x, error = _noisy_samples(probe, reading, samples, ratio * width)
        linear = simple_denoisers.linear(samples.flatten(1), x.flatten(1), sigma)
        excess = error / float((linear - samples.flatten(1)).square().mean())
        found[f"samples at {sigma:.3g}"] = excess / LINEAR_EXCESS
    silence_denoises = reading.prediction not in (*NOISE_ANSWERS, *DATA_ANSWERS)
    if silence_denoises and not _answers(probe, reading):  # the last level is sqrt(v)
        found["answer"] = error / simple_denoisers.least_error(samples, x, sigma) / SILENT_EXCESS
    return found


def _noisy_samples(probe: Probe, reading: Reading, samples: Tensor, sigma: float) -> tuple[float, Tensor, float]:
    """Return a level that the network knows, samples with its noise, and the mean squared error of D on them."""
    sigma = min(max(sigma, probe.noise_range[0]), probe.noise_range[1])
    x = samples + sigma * rng.normal(tuple(samples.shape), samples, rng.seeded(1, samples.device))
    denoised = x + sigma**2 * probe.score(reading, x, sigma)
    return sigma, x, float((denoised - samples).square().mean())


def _answers(probe: Probe, reading: Reading) -> bool:
    """Return whether the network's output depends on its input: one that does not fits several readings."""
    raw = reading.prediction._replace(skip=torch.zeros_like, gain=torch.ones_like)
    sigma = min(3 * math.sqrt(probe.variance), probe.noise_range[1])
    _, odd = _odd_part(probe, reading._replace(prediction=raw), sigma)
    return float(odd.square().mean()) > LEAST_ANSWER**2


def _better_reading(probe: Probe, own: Reading, other_times: bool) -> tuple[str, str] | None:
    """Return what the network looks like and the call for it: the reading that fits best, where one fits."""
    # where the timesteps are not known, those of the first diffusion models: Ho et al. (2020)
    usual = from_alphas_cumprod((1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0))
    index = own.time if isinstance(own.time, Timesteps) else usual
    readings = {
        "diffusion.from_epsilon(net, alphas_cumprod)": Reading(predictions.EPSILON, index),
        "diffusion.from_x0(net, alphas_cumprod)": Reading(predictions.X0, index),
        "diffusion.from_v(net, alphas_cumprod)": Reading(predictions.V, index),
        "diffusion.from_score(net, sigmas)": Reading(predictions.SCORE, index),
    }
    if other_times:
        readings |= {
            "diffusion.from_denoiser(net)": Reading(predictions.DENOISER, torch.clone),
            "diffusion.from_velocity(net)": Reading(predictions.VELOCITY, flow_time),
            'diffusion.from_score(net, sigmas, by="sigma")': Reading(predictions.SCORE, torch.clone),
        }
    fits: dict[str, float] = {}
    for call, reading in readings.items():
        with suppress(Exception):  # a guess: a network may refuse what it was not made for
            found = misfits(probe, reading).values()
            if max(found) <= 1 and _answers(probe, reading):
                fits[call] = sum(found) / len(found)
    if not fits:
        return None
    best = min(fits, key=fits.__getitem__)
    return readings[best].prediction.name, best


def _better_variance(probe: Probe, own: Reading) -> float | None:
    """Return the variance that the network says the data have, where with it the reading is right."""
    sigma = min(10 * math.sqrt(probe.variance), probe.noise_range[1])
    said = _said(_response(probe, own, sigma)[1], sigma)
    if not 0 < said < math.inf or max(misfits(probe._replace(variance=said), own).values()) > 1:
        return None
    return said


def _message(probe: Probe, own: Reading, found: dict[str, float], better: tuple[str, str] | None) -> str:
    """Return the text of the warning."""
    worst = max(found, key=found.__getitem__)
    text = f"wrapped as {own.prediction.name}, the network is not one (test {worst!r}: {found[worst]:.3g} of at most 1)"
    if better is not None:
        return f"{text}: this looks like {better[0]}. Use {better[1]}."
    if (said := _better_variance(probe, own)) is not None:
        return f"variance={probe.variance:.3g} was passed, and the network was trained on about {said:.2g}: pass that."
    return (
        f"{text}, and nothing else that scoremh.diffusion knows. Is it trained, is its schedule the one that was "
        f"passed, and is the data's variance {probe.variance:.3g}?"
    )

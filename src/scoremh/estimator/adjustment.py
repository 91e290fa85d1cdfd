"""The noise levels at which a learned score is near enough to a gradient for an accept step to mean something."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from scoremh import annealing
from scoremh.acceptance import Always, LineIntegral
from scoremh.diagnostics import MAX_CIRCULATION, Caution, conservativity_by_level, lowest_conservative_level
from scoremh.sampler import ANNEALING_LEVELS, ANNEALING_STEP_SIZE, Sampler

MAX_ROWS = 500  # that the circulation is measured at


def find_adjustment(sampler: Sampler, rows: Tensor, *, generator: torch.Generator | None = None) -> Sampler:
    """Return the sampler that anneals with an accept step only where the integral of its score has little circulation.

    Args:
        sampler: Sampler with a learned score.
        rows: Rows of the data; the first 500 are used.
        generator: Random number generator; the same seed gives the same level.
    """
    low, high = sampler.noise_range
    levels, step = annealing.karras(high, low, ANNEALING_LEVELS), math.sqrt(2 * ANNEALING_STEP_SIZE)
    u = sampler.score.coordinates.inverse(rows[:MAX_ROWS])
    found = conservativity_by_level(sampler.score.standard.at, levels, u, step=step, generator=generator)
    lowest = lowest_conservative_level(found)
    return replace(sampler, adjust_above=0.0 if lowest == levels[-1] else lowest)


def adjustment_line(sampler: Sampler) -> str:
    """Return at which noise levels annealing has an accept step, as a report says it.

    Args:
        sampler: Sampler whose level was found.
    """
    if isinstance(sampler.acceptance, Always):
        return "none"
    limit = f"{MAX_CIRCULATION:g} nats around a triangle of the size of a step"
    if sampler.adjust_above == 0:
        return f"at every noise level: log p returns within {limit}"
    return f"at noise levels from {sampler.adjust_above:.3g} up: below, log p fails to return within {limit}"


def adjustment_cautions(sampler: Sampler) -> list[Caution]:
    """Return a caution where the kernel integrates its score below the levels at which that means something.

    Args:
        sampler: Sampler whose level was found.
    """
    if sampler.noise_level >= sampler.adjust_above or not isinstance(sampler.rule, LineIntegral):
        return []
    text = (
        f"At the kernel's noise level {sampler.noise_level:.3g} an accept step means little: the integral of the score "
        f"depends on its way by more than {MAX_CIRCULATION:g} nats. Increase score_steps or noise_level."
    )
    return [Caution("conservativity", sampler.adjust_above, text)]

"""The noise level at which the kernel of an estimator runs, where it is not given.

A low level keeps the accept step close to the data; a high one connects modes, and has none of the wells that a learned
score has where there were no rows. Trial chains run at rising levels, and the first is taken at which

- R-hat of the trial chains is at most 1.05: what a chain says does not depend on where annealing left it; and
- not more of their draws lie beyond the range of the training rows than of fresh rows would, by .5 % and by what is due
  to chance: of fresh rows, 2 / (n + 1) in every coordinate;

the highest one where none is. No row is used but those of the training, so that held-out rows remain to judge by.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scoremh import diagnostics
from scoremh._shared.progress import progress_bar
from scoremh.acceptance import Always
from scoremh.sampler import Sampler

NOISE_LEVELS = 0.6, 1.0, 2.0  # chosen on tables that docs/tables.md does not judge by
TRIAL_CHAINS, TRIAL_STEPS, TRIAL_DRAWS = 400, 200, 10
MAX_TRIAL_R_HAT, MAX_SHARE_BEYOND = 1.05, 0.005


def choose_noise_level(
    sampler: Sampler,
    rows: Tensor,
    *,
    annealing_steps: int,
    chain_steps: int,
    generator: torch.Generator,
    progress: bool = False,
) -> float:
    """Return the noise level at which trial chains mix and stay among the rows.

    Args:
        sampler: Sampler with a learned score, of any noise level.
        rows: Training rows, in the coordinates that the score was learned in.
        annealing_steps: Number of steps at each noise level of the annealing.
        chain_steps: Number of steps of a chain after annealing; trial chains make at most 200.
        generator: Random number generator; the same seed gives the same level.
        progress: Show a progress bar.
    """
    with progress_bar(len(NOISE_LEVELS), "noise level", unit="trials", show=progress) as tick:
        for level in NOISE_LEVELS:
            trial = replace(sampler, noise_level=level, acceptance=_trial_rule(sampler))
            passes = trial_passes(trial, rows, annealing_steps, min(TRIAL_STEPS, chain_steps), generator=generator)
            tick(1, f"{level:g}")
            if passes:
                return level
    return NOISE_LEVELS[-1]


def _trial_rule(sampler: Sampler) -> Any:
    return sampler.acceptance if isinstance(sampler.acceptance, Always) else None


def trial_passes(
    sampler: Sampler, rows: Tensor, annealing_steps: int, chain_steps: int, *, generator: torch.Generator
) -> bool:
    """Return whether trial chains mix and stay among the rows.

    Args:
        sampler: Sampler to try.
        rows: Training rows.
        annealing_steps: Number of steps at each noise level of the annealing.
        chain_steps: Number of steps of a trial chain.
        generator: Random number generator; the same seed gives the same answer.
    """
    start = sampler.anneal(TRIAL_CHAINS, annealing_steps, watch=False, generator=generator).draws
    tuned = sampler.tune(start, steps=chain_steps, generator=generator)
    chains = tuned.run(start, chain_steps, draws=min(TRIAL_DRAWS, chain_steps), generator=generator)
    r_hat = float(diagnostics.summary(chains).table["r_hat"].max())
    beyond = share_beyond(chains.last, rows)
    expected = min(1.0, MAX_SHARE_BEYOND + 2 * rows.shape[1] / (len(rows) + 1))
    chance = 2 * math.sqrt(expected * (1 - expected) / TRIAL_CHAINS)
    return r_hat <= MAX_TRIAL_R_HAT and beyond <= expected + chance


def share_beyond(draws: Tensor, rows: Tensor) -> float:
    """Return the share of draws that lie beyond the range of rows in any coordinate.

    Args:
        draws: Draws.
        rows: Rows.
    """
    outside = (draws < rows.amin(0)) | (draws > rows.amax(0))
    return float(outside.any(1).double().mean())

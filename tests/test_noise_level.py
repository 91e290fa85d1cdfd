"""The noise level of an estimator's kernel: the lowest at which trial chains mix and stay among the rows."""

from typing import Any

import pytest
import torch

from scoremh import Sampler, targets
from scoremh.estimator.model import NOISE_LEVELS, choose_noise_level, share_beyond, try_sampler

NORMAL = targets.Gaussian([0.0, 0.0])
APART = targets.GaussianMixture([0.5, 0.5], [[-2.0, 0.0], [2.0, 0.0]], 0.05 * torch.eye(2))
STEPS: dict[str, Any] = {"annealing_steps": 3, "chain_steps": 60}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_mode_needs_no_more_than_the_lowest_level() -> None:
    rows = NORMAL.sample(2000, generator=seeded(1))
    found = choose_noise_level(Sampler(NORMAL), rows, **STEPS, generator=seeded())
    assert found.noise_level == NOISE_LEVELS[0]
    assert found.step_size is not None


@pytest.mark.slow
def test_modes_that_lie_apart_need_a_higher_level() -> None:
    rows = APART.sample(2000, generator=seeded(1))
    low, *_, high = NOISE_LEVELS
    passes = {
        level: try_sampler(Sampler(APART, level), rows, 3, 100, generator=seeded())[1] for level in (low, high)
    }  # 4 apart: six standard deviations of the blurred modes, and two
    assert passes == {low: False, high: True}
    assert choose_noise_level(Sampler(APART), rows, **STEPS, generator=seeded()).noise_level > low


def test_chains_that_leave_the_rows_do_not_pass() -> None:
    narrow = 0.5 * NORMAL.sample(2000, generator=seeded(1))
    assert not try_sampler(Sampler(NORMAL, 0.6), narrow, 3, 60, generator=seeded())[1]


def test_the_share_beyond_counts_rows_of_which_a_coordinate_is() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    draws = torch.tensor([[0.5, 0.5], [0.5, 1.5], [-1.0, 2.0], [1.0, 0.0]])
    assert share_beyond(draws, rows) == 0.5

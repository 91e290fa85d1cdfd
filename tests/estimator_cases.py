"""Rows to fit, and a small estimator of them."""

from typing import Any

import pandas as pd
import pytest
import torch

from scoremh import ScoreMH, targets

SMALL: dict[str, Any] = {
    "score_steps": 20,
    "acceptance_steps": 20,
    "annealing_steps": 1,
    "chain_steps": 8,
    "noise_level": 0.6,  # trial chains, which choose it, take half the time of so small a fit
    "verbose": False,
    "random_state": 0,
}
LAW = targets.GaussianMixture([0.3, 0.7], [[-2.0, 0.0], [2.0, 1.0]], [[0.5, 0.2], [0.2, 0.4]])
X = LAW.sample(2000, generator=torch.Generator().manual_seed(1)).double().numpy()
FRAME = pd.DataFrame(X, columns=["width", "height"])


@pytest.fixture(scope="module")
def small() -> ScoreMH:
    return ScoreMH(**SMALL).fit(FRAME)

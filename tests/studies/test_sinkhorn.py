"""The paper's metrics: of the definition, in limits, against another library."""

from typing import Any

import numpy as np
import ot
import pytest
import torch
from torch import Tensor

from scoremh import metrics
from studies import sinkhorn
from studies.sinkhorn import paper_metrics, sinkhorn_divergence
from tests.cases import seeded


def normal(n: int, *event: int, seed: int = 0) -> Tensor:
    return torch.randn(n, *event, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("p", [1, 2])
def test_it_is_a_distance_between_samples_of_any_order_place_shape_and_dtype(p: Any) -> None:
    x, y = normal(50, 2, 3), 1 + 0.5 * normal(70, 2, 3, seed=1)
    value = sinkhorn_divergence(x, y, p=p)
    shuffled = x[torch.randperm(50, generator=seeded(1))]
    assert sinkhorn_divergence(x, shuffled, p=p) == pytest.approx(0, abs=1e-9)
    assert value > 0.1
    assert sinkhorn_divergence(y, x, p=p) == pytest.approx(value, rel=1e-6)
    assert sinkhorn_divergence(x + 1000, y + 1000, p=p) == pytest.approx(value, rel=1e-6)
    assert sinkhorn_divergence(x.flatten(1), y.flatten(1), p=p) == pytest.approx(value, rel=1e-9)
    assert sinkhorn_divergence(x.float(), y.float(), p=p) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("p", [1, 2])
def test_pieces_change_nothing(p: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(50, 2), 1 + normal(33, 2, seed=1)
    whole = sinkhorn_divergence(x, y, p=p)
    monkeypatch.setattr(metrics, "MAX_DISTANCES", 100)
    monkeypatch.setattr(sinkhorn, "CACHED_ROWS", 7)
    assert sinkhorn_divergence(x, y, p=p) == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
def test_a_translation_is_transported_by_its_length() -> None:
    x, v = normal(80, 3), torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    assert sinkhorn_divergence(x, x + v, p=2) == pytest.approx(9 / 2, rel=1e-3)
    # for p = 2 the blur cancels; for p = 1 it does in the limit
    assert sinkhorn_divergence(x, x + v, p=1, blur=1e-3, cooling=0.99) == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("p", [1, 2])
def test_sinkhorn_matches_that_of_another_library(p: Any) -> None:
    x, y = normal(80, 2), normal(60, 2, seed=1) * 0.7 + 0.5

    def entropic(a: Tensor, b: Tensor) -> float:
        cost = torch.cdist(a, b).numpy() ** p / p
        weights = [np.full(len(c), 1 / len(c)) for c in (a, b)]
        reg = 0.3**p
        plan = ot.sinkhorn(*weights, cost, reg, method="sinkhorn_log", numItermax=20_000, stopThr=1e-12)
        outer = np.outer(*weights)
        return float((plan * cost).sum() + reg * (plan * np.log(np.maximum(plan, 1e-300) / outer)).sum())

    expected = entropic(x, y) - entropic(x, x) / 2 - entropic(y, y) / 2
    assert sinkhorn_divergence(x, y, p=p, blur=0.3, cooling=0.98) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_sinkhorn_with_little_blur_is_exact_transport() -> None:
    x, y = normal(100, 2), normal(100, 2, seed=1) + 1
    assert sinkhorn_divergence(x, y, p=1, blur=1e-3, cooling=0.99) == pytest.approx(metrics.w1(x, y), rel=0.02)
    assert sinkhorn_divergence(x, y, p=2, blur=1e-3, cooling=0.99) == pytest.approx(metrics.w2(x, y) ** 2 / 2, rel=0.02)


def test_the_papers_numbers_have_their_parts() -> None:
    x, y = normal(50, 2), normal(50, 2, seed=1) + 0.5
    found = paper_metrics(x, y)
    assert found["w1"] == sinkhorn_divergence(x, y, p=1, blur=0.05)
    assert found["w2"] == sinkhorn_divergence(x, y, p=2, blur=0.05)
    assert found["mmd"] == metrics.energy_distance(x, y) / 2

"""The comparison with peers: its networks, its effective draws and its page; no peer is needed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers.effective import effective_share, worst_share
from benchmarks.peers.law import Law, LogDensity, Score
from benchmarks.peers.moves import DEFAULT
from benchmarks.peers.page import page
from benchmarks.peers.run import LAWS, ROUNDS, SEEDS
from scoremh.targets import GaussianMixture

LAW = Law(5, 16)


def mixture(noise_level: float) -> GaussianMixture:
    covariance = (LAW.variances + noise_level**2).diag().expand(2, -1, -1)
    return GaussianMixture(torch.tensor([0.5, 0.5]), torch.stack([LAW.mean, -LAW.mean]), covariance)


def test_both_networks_know_the_distribution() -> None:
    x, density = LAW.sample(200, 0), LogDensity(LAW)
    gradient = torch.func.grad(lambda y: density(y).sum())(x)
    torch.testing.assert_close(Score(LAW)(x), mixture(0.0).score(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, mixture(0.0).score(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_the_score_network_knows_noise_levels(sigma: float) -> None:
    x = LAW.sample(200, 0)
    torch.testing.assert_close(Score(LAW)(x, torch.tensor(sigma)), mixture(sigma).score(x), atol=1e-5, rtol=1e-5)


def test_no_weight_of_the_networks_is_zero() -> None:
    for net in (Score(LAW), LogDensity(LAW)):
        assert all(bool((layer.weight != 0).all()) for layer in (net.first, net.second, net.last))


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.5, 0.9])
def test_effective_share_of_an_autoregression(correlation: float) -> None:
    noise = np.random.default_rng(0).standard_normal((400, 1000))
    chains = noise.copy()
    for k in range(1, chains.shape[1]):
        chains[:, k] = correlation * chains[:, k - 1] + np.sqrt(1 - correlation**2) * noise[:, k]
    wanted = (1 - correlation) / (1 + correlation)
    assert effective_share(chains) == pytest.approx(wanted, rel=0.05)
    both = np.stack([noise.T, chains.T], -1)
    assert worst_share(both) == pytest.approx(min(wanted, 1.0), rel=0.05)


def test_stuck_chains_have_no_more_draws_than_chains() -> None:
    stuck = np.repeat(np.random.default_rng(0).standard_normal((100, 1)), 50, 1)
    assert 0 < effective_share(stuck) <= 1 / 50
    assert effective_share(np.ones((10, 50))) == 0.0


def cells(biased: bool = False) -> dict[str, object]:
    """Return results in which our default is three times as fast as one peer, and as fast as the other."""
    seconds = {DEFAULT: 1.0, "blackjax MALA": 3.0, "ebmkit MALA": 1.0}
    found: dict[str, object] = {"about": "Measured on a day."}
    for law in LAWS:
        found[f"time/{law.dimension}"] = {
            name: {"settings": "its own", "seconds": [value] * ROUNDS, "calls": 2} for name, value in seconds.items()
        }
        for seed in SEEDS:
            for name in seconds:
                bias = 0.1 if biased and name == DEFAULT else 0.01
                found[f"mixing/{law.dimension}/{name}/{seed}"] = {"share": 0.01, "transitions": 2000, "bias": bias}
    return found


@pytest.mark.parametrize("biased", [False, True])
def test_the_page_says_what_was_not_reached(biased: bool, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"cells": cells(biased)}))
    text = page(path)
    assert f"| {DEFAULT} | 10{'*' if biased else ''} |" in text
    assert "| blackjax MALA | 3, 3.00 |" in text
    assert "| ebmkit MALA | 10, **1.00** |" in text
    assert "not reached against ebmkit MALA in 2 (1.00)" in text
    assert ("Ours: 0.100" in text) == biased
    assert "{" not in text


def test_the_page_matches_that_of_the_results() -> None:
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "peers.md").read_text() == page(docs / "results" / "peers.json")

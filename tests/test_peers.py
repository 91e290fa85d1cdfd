"""The comparison with peers: its networks, its effective draws, its exponents and its page; no peer is needed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers.effective import effective_share, w1, worst_share
from benchmarks.peers.growth import exponent
from benchmarks.peers.law import MODE, Law, LogDensity, Score
from benchmarks.peers.moves import PLAIN
from benchmarks.peers.page import page
from benchmarks.peers.run import CHAINS, LAWS, MANY_CHAINS, MANY_LAW, ROUNDS, SEEDS
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


def test_w1_of_a_shift_is_the_shift() -> None:
    quantiles = LAW.quantiles(500)
    np.testing.assert_allclose(w1(quantiles[::-1] + 0.25, quantiles), 0.25)


def test_quantiles_match_those_of_exact_draws() -> None:
    draws = LAW.sample(20_000, 0).double().numpy()
    assert w1(draws, LAW.quantiles(20_000)).max() < 0.05
    assert abs(float(np.abs(LAW.quantiles(2)[:, 0]).mean()) - MODE) < 0.05


def test_exponents_and_their_intervals() -> None:
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0]
    exact = exponent(sizes, [3 * size**1.5 for size in sizes])
    np.testing.assert_allclose(exact, 1.5)
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        low, _, high = exponent(sizes, list(np.array(sizes) * np.exp(0.1 * rng.standard_normal(5))))
        inside += low < 1 < high
    assert 0.91 < inside / 400 < 0.98  # 95%, four standard errors of 400 trials either way


def cells(biased: str = "") -> dict[str, object]:
    """Return results in which our MALA is three times as fast as one peer, and as fast as the other."""
    seconds = {
        "scoremh MALA, Simpson": 1.0,
        "scoremh MALA, Gauss": 2.0,
        PLAIN: 5.0,
        "scoremh Hamiltonian": 4.0,
        "blackjax MALA": 3.0,
        "ebmkit MALA": 1.0,
    }
    found: dict[str, object] = {"about/1": "Measured on a day."}
    times = {name: {"settings": "its own", "seconds": [value] * ROUNDS, "calls": 2} for name, value in seconds.items()}
    places = [(law.dimension, CHAINS, 1) for law in LAWS] + [(MANY_LAW.dimension, MANY_CHAINS, n) for n in (1, 2)]
    found |= {f"time/{d}/{chains}/{threads}": times for d, chains, threads in places}
    for law in LAWS:
        for seed in SEEDS:
            w1s = {"along": 0.1, "others": 0.2, "transitions": 100}
            found[f"floor/{law.dimension}/{seed}"] = w1s
            for name in seconds:
                found[f"mixing/{law.dimension}/{name}/{seed}"] = {
                    "share": 0.01,
                    "transitions": 2000,
                    "bias": 0.1 if name == biased else 0.01,
                }
                found[f"distance/{law.dimension}/{name}/{seed}"] = w1s
    line = {"sizes": [1.0, 2.0, 4.0, 8.0], "milliseconds": [1.0, 2.0, 4.0, 8.0]}
    return found | {"growth": {"chains": line}}


def test_the_page_says_what_was_not_reached(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"cells": cells()}))
    text = page(path)
    assert "| blackjax MALA | 3.00 (3.00 to 3.00) |" in text
    assert "| ebmkit MALA | **1.00** (1.00 to 1.00) |" in text
    assert "not reached against ebmkit MALA in 2 dimensions (1.00)" in text
    assert "1.00 (1.00 to 1.00) |" in text.split("## How our cost grows")[1]
    assert "{" not in text


def test_a_biased_rule_of_ours_reaches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_text(json.dumps({"cells": cells("scoremh MALA, Simpson")}))
    assert "not reached against blackjax MALA in 2 dimensions (1.50)" in page(path)


def test_the_page_matches_that_of_the_results() -> None:
    docs = Path(__file__).parents[1] / "docs"
    assert (docs / "peers.md").read_text() == page(docs / "results" / "peers.json")

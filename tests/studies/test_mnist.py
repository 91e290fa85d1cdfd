"""The image studies: distances, robustness, and pages that agree with the measurements."""

import hashlib
import math
from typing import Any

import pytest
import torch

from studies.mnist import figures, sampling
from studies.mnist.sampling import METHODS, Plan, kept_score
from studies.mnist.source import WEIGHTS, images
from tests.cases import seeded
from tests.studies.cases import made_up

NORMAL = seeded(3)


def made(ula: dict[float, float], mala: dict[float, float]) -> Any:
    """Return made-up records: both distances by method and tau."""
    config = figures.Curve((1,), taus=tuple(ula))
    values = {"ula": ula, "batch_ula": ula, "simpson": mala}
    cells = [cell.axes for cell in figures.curve_stages(config)[1]]
    return made_up(config, drawn=[axes | {"w1": values[axes["method"]][axes["tau"]]} for axes in cells])


def test_the_good_range_is_around_the_best_and_has_no_gap() -> None:
    assert figures.good_range({0.1: 10.5, 0.2: 20.0, 0.3: 10.0, 0.5: 10.9, 0.7: 11.2, 0.9: 10.2}) == (0.3, 0.5)


def test_claims_follow_the_records() -> None:
    taus = (0.3, 0.5, 0.7, 0.9, 1.1)
    flat, rising = dict.fromkeys(taus, 12.0), dict(zip(taus, (11.0, 12.0, 30.0, 60.0, 90.0), strict=True))
    found = made(rising, flat)
    assert figures.nearer(found) == {"0.7": True, "0.9": True, "1.1": True}
    assert figures.wider(found)
    assert not figures.better_at_best(found)
    assert set(figures.nearer(made(flat, rising)).values()) == {False}
    assert math.isinf(figures.means(made(rising | {1.1: math.inf}, flat), "ula")[1.1])


def test_weights_are_small_and_named_with_their_hash() -> None:
    text = (WEIGHTS / "README.md").read_text()
    for path in WEIGHTS.glob("*.safetensors"):
        assert path.stat().st_size < 5_000_000
        assert hashlib.sha256(path.read_bytes()).hexdigest() in text, path.name


def test_the_kept_score_denoises() -> None:
    """The errors of the prototype that this network follows, with room for an unfinished training."""
    fit, x = kept_score(), images("test")[:64]
    for sigma, error in ((0.05, 0.035), (0.2, 0.08), (0.8, 0.21), (3.2, 0.45)):
        noise = torch.randn(x.shape, generator=seeded(1))
        y = x + sigma * noise
        rms = (y + sigma**2 * fit.net(y, sigma) - x).square().mean().sqrt()
        assert rms < error, (sigma, float(rms))


def test_samplers_are_compared_at_equal_score_calls() -> None:
    fit, real = kept_score(), images("test")[:4]
    calls = {}
    for method in ("ula", "batch_ula", "simpson"):
        drawn, record = sampling.draw(fit, Plan(method, 0.7, levels=3, final=2), 2, 1, real)
        calls[method] = record["calls"]
        assert drawn.shape == (2, 1, 28, 28)
    assert calls["ula"] == calls["simpson"] > calls["batch_ula"]  # no second evaluation at the start of a level
    again, _ = sampling.draw(fit, Plan("simpson", 0.7, levels=3, final=2), 2, 1, real)
    assert torch.equal(again, drawn)


def test_all_chains_have_one_step_from_the_mean_norm_of_their_scores() -> None:
    fit, x = kept_score(), torch.cat([images("test")[:1], 3 * images("test")[1:2]])
    moved = sampling.batch_ula(fit, [1.0], x, steps=1, tau=0.7, draws=seeded(3))
    score, z = fit.net(x, 1.0), torch.randn(x.shape, generator=seeded(3))
    h = 2 * (0.7 * 28 / score.flatten(1).norm(dim=1).mean()) ** 2
    torch.testing.assert_close(moved, x + h * score + (2 * h).sqrt() * z)


def test_real_images_with_their_noise_have_no_lag() -> None:
    fit, x = kept_score(), images("test")
    noise = torch.randn(64, 1, 28, 28, generator=seeded(8))
    for level in (0.1, 1.0):
        assert sampling.lag(fit, x[100:164] + level * noise, x[:64], level) == pytest.approx(1, abs=0.05)
        assert sampling.lag(fit, x[100:164] + 1.4 * level * noise, x[:64], level) == pytest.approx(1.4, abs=0.2)


def test_regions_of_the_map() -> None:
    config = figures.Map(levels=(10,), taus=(0.1, 0.3, 0.5, 0.7))
    w1 = {"batch_ula": (50.0, 50.0, 20.0, 20.0), "simpson": (50.0, 20.0, 50.0, 20.0)}
    records = [
        cell.axes | {"w1": w1[cell.axes["method"]][config.taus.index(cell.axes["tau"])]}
        for cell in figures.map_stages(config)[1]
    ]
    found = made_up(config, drawn=records, floor=[{"n": 100, "w1": 12.0}])
    assert figures.regions(found, 30.0).flatten().tolist() == [0, 1, 2, 3]
    assert figures.region_shares(found, 30.0) == [0.25] * 4
    assert not any(figures.more_orange(found).values())


def test_every_learned_method_has_its_weights() -> None:
    learned = [name for name, method in METHODS.items() if method.learned]
    assert learned
    assert all((WEIGHTS / f"mnist-{name}.safetensors").exists() for name in learned)

"""The image studies: distances, robustness, and pages that agree with the measurements."""

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import ScoreFit
from studies import digits
from studies.framework import runner
from studies.mnist import judging, lenet, panel, samplers, samples, sampling, tau, threshold_map
from studies.mnist.images import SCORE, WEIGHTS, mnist_test
from studies.mnist.sampling import METHODS, Plan
from tests.cases import seeded
from tests.studies.cases import is_picture, made_up, run_small

NORMAL = seeded(3)
SMALL_DIGITS = digits.Config(seeds=(21,), channels=(8, 16), steps=250, n=40, levels=60, final=5, taus=(0.7,))


def drawn(config: tau.Config, **values: dict[float, float]) -> list[dict[str, Any]]:
    """Return made-up records: W1 and Frechet by method and tau."""
    extra = {"acceptance": 0.5, "first_acceptance": 0.5, "descent_acceptance": 0.5, "last_acceptance": 0.1}
    extra |= {"first_lag": 1.2, "middle_lag": 1.2, "lag": 1.2, "calls": 300.0}
    rest = dict.fromkeys(("kernel", "precision", "recall", "classes"), 0.5)
    cells = [cell.axes for cell in tau.stages(config)[1]]
    both = [dict.fromkeys(("w1", "frechet"), values[axes["method"]][axes["tau"]]) for axes in cells]
    return [axes | one | rest | extra for axes, one in zip(cells, both, strict=True)]


def made(ula: dict[float, float], mala: dict[float, float]) -> Any:
    config = tau.Config((1,), taus=tuple(ula), batch_taus=(), predictor_taus=())
    floor = [{"n": config.n} | dict.fromkeys(judging.DISTANCES, 10.0)]
    return made_up(config, drawn=drawn(config, ula=ula, simpson=mala), floor=floor)


def test_the_good_range_is_around_the_best_and_has_no_gap() -> None:
    assert tau.good_range({0.1: 10.5, 0.2: 20.0, 0.3: 10.0, 0.5: 10.9, 0.7: 11.2, 0.9: 10.2}) == (0.3, 0.5)
    assert tau.width({0.2: 5.0, 0.5: 5.1, 1.0: 5.2}) == pytest.approx(5)


def test_claims_follow_the_records() -> None:
    taus = (0.3, 0.5, 0.7, 0.9, 1.1)
    flat, rising = dict.fromkeys(taus, 12.0), dict(zip(taus, (11.0, 12.0, 30.0, 60.0, 90.0), strict=True))
    found = made(rising, flat)
    assert tau.better_at_headline(found) == {f"tau {value}, ULA": True for value in (0.7, 0.9, 1.1)}
    assert set(tau.wider(found).values()) == {True}
    assert set(tau.better_at_best(found).values()) == {False}
    assert set(tau.better_at_headline(made(flat, rising)).values()) == {False}
    assert math.isinf(tau.means(made(rising | {1.1: math.inf}, flat), "ula", "w1")[1.1])


def test_frechet_and_kernel_distances_of_known_features() -> None:
    a = torch.randn(4000, 3, generator=NORMAL, dtype=torch.float64)
    b = 2 * torch.randn(4000, 3, generator=NORMAL, dtype=torch.float64) + torch.tensor([1.0, 0.0, 0.0])
    assert judging.frechet_squared(a, b) == pytest.approx(1 + 3 * (1 - 2) ** 2, rel=0.1)
    assert judging.frechet_squared(a, a) == pytest.approx(0, abs=1e-9)
    assert abs(judging.kernel_squared(a[:2000], a[2000:])) < 0.05
    assert judging.kernel_squared(a, b) > 0.5


def test_precision_and_recall_tell_few_modes_from_blurred_ones() -> None:
    real = torch.randn(500, 2, generator=NORMAL, dtype=torch.float64)
    narrow, wide = 0.2 * real.flip(0), 4 * real.flip(1)
    assert judging.covered(narrow, real) > 0.95 > judging.covered(real, narrow) + 0.5
    assert judging.covered(wide, real) < 0.6


def test_the_lenet_is_the_one_that_is_kept_and_reads_digits() -> None:
    labels = torch.tensor([7, 2, 1, 0, 4, 1, 4, 9, 5, 9])
    assert (lenet.digits(mnist_test()[:10]) == labels).float().mean() >= 0.9
    assert lenet.features(mnist_test()[:3]).shape == (3, 84)


def test_weights_are_small_and_named_with_their_hash() -> None:
    text = (WEIGHTS / "README.md").read_text()
    for path in WEIGHTS.glob("*.safetensors"):
        assert path.stat().st_size < 5_000_000
        assert hashlib.sha256(path.read_bytes()).hexdigest() in text, path.name


def test_the_kept_score_denoises() -> None:
    """The errors of the prototype that this network follows, with room for an unfinished training."""
    fit, x = ScoreFit.load(SCORE), mnist_test()[:64]
    for sigma, error in ((0.05, 0.035), (0.2, 0.08), (0.8, 0.21), (3.2, 0.45)):
        noise = torch.randn(x.shape, generator=seeded(1))
        y = x + sigma * noise
        rms = (y + sigma**2 * fit.net(y, sigma) - x).square().mean().sqrt()
        assert rms < error, (sigma, float(rms))


def test_samplers_are_compared_at_equal_score_calls() -> None:
    fit, real = ScoreFit.load(SCORE), mnist_test()[:4]
    calls = {}
    for method in ("ula", "batch_ula", "simpson"):
        found = sampling.draw(fit, Plan(method, 0.7, levels=3, final=2), 2, 1, real)
        calls[method] = found.calls
        assert found.images.shape == (2, 1, 28, 28)
        assert len(found.descent) == len(found.lags) == 3
    assert (
        calls["ula"] == calls["simpson"] == calls["batch_ula"] + 4
    )  # no second evaluation at the beginning of a level
    again = sampling.draw(fit, Plan("ula", 0.7, levels=3, final=2), 2, 1, real)
    other = sampling.draw(fit, Plan("ula", 0.7, levels=3, final=2, predictor=True), 2, 1, real)
    assert torch.equal(again.images, sampling.draw(fit, Plan("ula", 0.7, levels=3, final=2), 2, 1, real).images)
    assert other.calls == again.calls + 2


def test_all_chains_have_one_step_from_the_mean_norm_of_their_scores() -> None:
    fit, x = ScoreFit.load(SCORE), torch.cat([mnist_test()[:1], 3 * mnist_test()[1:2]])
    moved = sampling.batch_ula(fit, [1.0], x, steps=1, tau=0.7, draws=seeded(3))
    score, z = fit.net(x, 1.0), torch.randn(x.shape, generator=seeded(3))
    h = 2 * (0.7 * 28 / score.flatten(1).norm(dim=1).mean()) ** 2
    torch.testing.assert_close(moved, x + h * score + (2 * h).sqrt() * z)


def test_real_images_with_their_noise_have_no_lag() -> None:
    fit, x = ScoreFit.load(SCORE), mnist_test()
    noise = torch.randn(64, 1, 28, 28, generator=seeded(8))
    for level in (0.1, 1.0):
        assert sampling.lag(fit, x[100:164] + level * noise, x[:64], level) == pytest.approx(1, abs=0.05)
        assert sampling.lag(fit, x[100:164] + 1.4 * level * noise, x[:64], level) == pytest.approx(1.4, abs=0.2)


def test_regions_of_the_map() -> None:
    config = threshold_map.Config(levels=(10,), taus=(0.1, 0.3, 0.5, 0.7))
    w1 = {"batch_ula": (50.0, 50.0, 20.0, 20.0), "simpson": (50.0, 20.0, 50.0, 20.0)}
    records = [
        cell.axes | {"w1": w1[cell.axes["method"]][config.taus.index(cell.axes["tau"])]}
        for cell in threshold_map.stages(config)[1]
    ]
    found = made_up(config, drawn=records, floor=[{"n": 100, "w1": 12.0}])
    assert threshold_map.regions(found, 30.0).flatten().tolist() == [0, 1, 2, 3]
    assert threshold_map.shares(found, 30.0) == [0.25] * 4
    assert not any(threshold_map.more_orange(found).values())


def test_a_ladder_of_so_many_levels_swaps_at_that_rate() -> None:
    levels, d = panel.ladder(784, 0.2), 784
    ratio = (sampling.HIGH / sampling.LOW) ** (1 / (levels - 1))
    x, y = (torch.randn(2000, d, generator=NORMAL, dtype=torch.float64).square().sum(1) for _ in range(2))
    log_ratio = (1 - ratio**-2) * (x - ratio**2 * y) / 2  # x of level 1, y of level `ratio`
    assert log_ratio.exp().clamp(max=1).mean() == pytest.approx(0.2, abs=0.03)


def test_the_setting_of_a_sampler_is_the_best_of_its_trials(tmp_path: Path) -> None:
    for value, distance in ((0.4, 30.0), (0.5, None), (0.6, 20.0), (0.7, 25.0)):  # None: images were not finite
        runner.add(panel.Tried("simpson", value), {"frechet": distance}, {}, tmp_path)
    assert panel.chosen_setting("simpson", tmp_path).value == 0.6
    assert panel.chosen_setting("flow", tmp_path).levels == 1.5  # has no setting to try


@pytest.mark.slow
def test_samplers_of_images_cost_about_the_same() -> None:
    model, levels = ScoreFit.load(SCORE), 6
    for name, sampler in samplers.SAMPLERS.items():
        if name == "exact":
            continue  # its calls depend on the moves
        draws = seeded()
        choice = sampler.choices[0]
        noise = sampling.HIGH * torch.randn(2, 1, 28, 28, generator=draws)
        start = samplers.Start(model, noise, round(10 * levels * choice.levels), draws)
        x, calls = sampler.draw(start, choice.value)
        assert x.shape == noise.shape
        assert x.std() < 2  # of noise 10
        assert calls == pytest.approx(3 * 10 * levels, rel=0.06), name


def test_every_method_of_the_grids_has_a_label_and_its_weights_or_none() -> None:
    assert set(samples.PRESETS["quick"].methods) <= set(METHODS)
    learned = [method.learned for name, method in METHODS.items() if name in samples.PRESETS["paper"].methods]
    assert all(name is None or (WEIGHTS / f"{name}.safetensors").exists() for name in learned)


@pytest.mark.slow
def test_digits_from_nothing_to_pictures(tmp_path: Path) -> None:
    found, page = run_small(digits.STUDY, SMALL_DIGITS, tmp_path)
    (floor,) = found.kinds["floor"]
    assert all(floor["w1"] < record["w1"] < 8 for record in found.kinds["drawn"])  # noise of level 1 has 8
    assert "Simpson" in page
    assert is_picture(tmp_path / "docs" / "digits.png")

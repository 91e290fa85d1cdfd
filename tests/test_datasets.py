"""Generators against their geometry."""

import functools
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from scoremh import datasets
from scoremh.datasets import Variant

FALSE_ALARM = 1e-4 / 12  # of each p-value: there are 12 in this file

Draw = Callable[..., Tensor]
GENERATORS: dict[str, tuple[Draw, int]] = {
    "moons": (datasets.moons, 2),
    "s curve": (datasets.s_curve, 3),
    "swiss roll": (datasets.swiss_roll, 3),
    "pinwheel": (datasets.pinwheel, 2),
    "correct pinwheel": (functools.partial(datasets.pinwheel, variant="correct"), 2),
    "gaussian": (datasets.gaussian, 1),
}
each_generator = pytest.mark.parametrize(("draw", "d"), GENERATORS.values(), ids=GENERATORS)
each_pinwheel = pytest.mark.parametrize("variant", ["paper", "correct"])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def standard_normal(x: Tensor) -> None:
    """Fail unless these numbers follow N(0, 1)."""
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > FALSE_ALARM


@each_generator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_have_the_shape_the_dtype_and_the_bits_of_the_seed(draw: Draw, d: int, dtype: torch.dtype) -> None:
    x = draw(11, generator=seeded(0), dtype=dtype)
    assert (x.shape, x.dtype) == ((11, d), dtype)
    assert torch.equal(x, draw(11, generator=seeded(0), dtype=dtype))
    assert not torch.equal(x, draw(11, generator=seeded(1), dtype=dtype))
    assert draw().shape == (10_000, d)
    assert draw(1).dtype == torch.get_default_dtype()


@each_generator
def test_no_global_generator_is_touched(draw: Draw, d: int) -> None:
    def state() -> bytes:
        return pickle.dumps((torch.random.get_rng_state().tolist(), np.random.get_state()))  # noqa: NPY002

    before = state()
    draw(3)
    draw(3, generator=seeded(0))
    assert state() == before


def off_moons(x: Tensor) -> Tensor:
    outer, inner = x.norm(dim=1), (x - torch.tensor([1.0, 0.5])).norm(dim=1)
    return torch.minimum((outer - 1).abs(), (inner - 1).abs())


def off_s_curve(x: Tensor) -> Tensor:
    return x[:, 0].square() + (x[:, 2].abs() - 1).square() - 1  # two arcs of unit circles


def off_swiss_roll(x: Tensor) -> Tensor:
    r = x[:, [0, 2]].norm(dim=1)  # equals the angle
    return torch.stack([x[:, 0] - r * r.cos(), x[:, 2] - r * r.sin()], dim=1)


CURVES: dict[str, tuple[Draw, float, Callable[[Tensor], Tensor], list[float]]] = {
    "moons": (datasets.moons, 0.1, off_moons, [0.5, 0.25]),
    "s curve": (datasets.s_curve, 0.1, off_s_curve, [0.0, 1.0, 0.0]),
    # of t (cos t, sin t), with t uniform on (3 pi / 2, 9 pi / 2): the antiderivatives are t sin + cos, sin - t cos
    "swiss roll": (datasets.swiss_roll, 0.5, off_swiss_roll, [2.0, 10.5, 2 / (3 * math.pi)]),
}


@pytest.mark.parametrize("curve", CURVES)
def test_draws_are_a_curve_and_gaussian_noise_as_in_the_paper(curve: str) -> None:
    draw, noise, off, mean = CURVES[curve]
    clean = draw(noise=0.0, generator=seeded(0), dtype=torch.float64)
    assert off(clean).abs().max() < 1e-9
    error = clean.std(0) / math.sqrt(len(clean))
    assert ((clean.mean(0) - torch.tensor(mean)).abs() < 5 * error).all()
    standard_normal((draw(generator=seeded(0), dtype=torch.float64) - clean) / noise)


def test_the_gaussian_is_that_of_the_paper_with_variance_2() -> None:
    standard_normal((datasets.gaussian(generator=seeded(0), dtype=torch.float64) - 3) / math.sqrt(2))
    standard_normal((datasets.gaussian(mean=-1.0, std=0.1, generator=seeded(1), dtype=torch.float64) + 1) / 0.1)


def arms(variant: Variant, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the same draws with and without tangential noise."""
    make = functools.partial(datasets.pinwheel, variant=variant, dtype=torch.float64, **options)
    return make(generator=seeded(0)), make(tangential_std=0.0, generator=seeded(0))


@each_pinwheel
def test_the_arms_of_a_pinwheel(variant: Variant) -> None:
    _, clean = arms(variant)
    r = clean.norm(dim=1) * torch.tensor([[1.0], [-1.0]])  # a radius below 0 points the other way
    angle = torch.stack([torch.atan2(clean[:, 1], clean[:, 0]), torch.atan2(-clean[:, 1], -clean[:, 0])])
    k = (angle - 0.25 * r) / (2 * math.pi / 5)
    fits = (k - k.round()).abs() < 1e-9
    assert (fits.sum(0) == 1).all()
    standard_normal((r[fits] - 1) / 0.5)
    assert stats.chisquare(torch.bincount(k[fits].round().long() % 5).numpy()).pvalue > FALSE_ALARM


def test_the_printed_pinwheel_adds_one_number_to_both_coordinates() -> None:
    noisy, clean = arms("paper")
    noise = noisy - clean
    torch.testing.assert_close(noise[:, 0], noise[:, 1], rtol=0, atol=1e-14)
    standard_normal(noise[:, 0] / 0.05)


def test_the_noise_of_the_correct_pinwheel_is_orthogonal_to_the_radius_and_independent_of_it() -> None:
    noisy, clean = arms("correct")
    noise, radius = noisy - clean, clean.norm(dim=1)
    assert (noise * clean).sum(1).abs().max() < 1e-14
    across = (noise[:, 1] * clean[:, 0] - noise[:, 0] * clean[:, 1]) / radius
    standard_normal(across / 0.05)
    assert stats.spearmanr(across, radius).pvalue > FALSE_ALARM


@each_pinwheel
def test_only_the_printed_pinwheel_has_an_arm_without_width(variant: Variant) -> None:
    noisy, clean = arms(variant, classes=8, rate=0.0)
    diagonal = noisy[(clean[:, 0] - clean[:, 1]).abs() < 1e-9]  # the arms at 45 and 225 degrees
    width = torch.linalg.svdvals(diagonal)[1] / math.sqrt(len(diagonal))
    assert width < 1e-14 if variant == "paper" else abs(width - 0.05) < 0.005


@each_pinwheel
def test_the_printed_noise_runs_along_an_arm_at_the_parameters_of_the_paper_too(variant: Variant) -> None:
    noisy, clean = arms(variant, classes=1)
    _, further = arms(variant, classes=1, radial_std=0.5 + 1e-6)
    noise, arm = (torch.nn.functional.normalize(v, dim=1, eps=0) for v in (noisy - clean, further - clean))
    sine = (noise[:, 0] * arm[:, 1] - noise[:, 1] * arm[:, 0]).abs()
    assert sine.min() < 1e-3 if variant == "paper" else sine.min() > 0.7


BAD_ARGUMENTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no points": (lambda: datasets.moons(0), ValueError, "n of at least 1, got 0"),
    "integers": (
        lambda: datasets.moons(3, dtype=torch.int64),
        TypeError,
        "dtype to be a floating torch.dtype, got torch.int64",
    ),
    "negative noise": (
        lambda: datasets.s_curve(3, noise=-1.0),
        ValueError,
        "noise of at least 0, got -1.0. Pass 0",
    ),
    "infinite std": (
        lambda: datasets.gaussian(3, std=math.inf),
        ValueError,
        "std to be finite, got inf",
    ),
    "no arms": (lambda: datasets.pinwheel(3, classes=0), ValueError, "classes of at least 1, got 0"),
    "a rate of NaN": (lambda: datasets.pinwheel(3, rate=math.nan), ValueError, "rate to be finite, got nan"),
}


def test_digits_are_those_of_scikit_learn_in_17_levels() -> None:
    x = datasets.digits()
    assert (x.shape, x.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert torch.equal(x.unique(), torch.linspace(-1, 1, 17))


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(case: str) -> None:
    attempt, kind, text = BAD_ARGUMENTS[case]
    with pytest.raises(kind, match=re.escape(text)):
        attempt()


@pytest.mark.slow
def test_wrong_types_and_words_are_refused_without_run_time_checks() -> None:
    script = """
from scoremh import datasets
calls = ("moons(1.5)", "moons(3, noise='0.1')", "pinwheel(3, variant='right')")
for call in calls:
    try:
        eval("datasets." + call)
    except (TypeError, ValueError) as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line.split(". ")[0] for line in ran.stdout.splitlines()] == [
        "expected n to be an int, got float 1.5",
        "expected noise to be a number, got str '0.1'",
        "expected variant to be one of 'paper', 'correct', got 'right'",
    ]

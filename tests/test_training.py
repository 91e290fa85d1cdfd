"""The optimisation loop: what it returns, when it stops, and that a killed training ends with the same bits."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from scoremh import DivergenceError, Recipe, ScoreFit, ScoreMH, fit_score, training
from scoremh.estimator.diagnosis import still_falling
from scoremh.training import Fit, train
from tests.cases import seeded


class Mean(nn.Module):
    """One number, to be fitted to the mean of the samples."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))


class Squares:
    """E (x - value)^2 / 2."""

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return (x - net.value).square().mean() / 2  # type: ignore[operator]


X = 3 + torch.randn(1000, 1, generator=seeded())


def fitted(recipe: Recipe, **options: Any) -> Fit:
    return train(Mean(), Squares(), X, recipe=recipe, generator=seeded(), **options)


def test_dropout_draws_from_the_training_and_not_from_the_global_generator() -> None:
    class Dropped(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

    class Loss(Squares):
        def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            return super().loss(net, net.drop(x))  # type: ignore[operator]

    values = []
    for number in range(2):
        torch.manual_seed(number)
        before = torch.get_rng_state()
        recipe = Recipe(steps=40, batch=8, check_every=10, patience=None)
        values.append(float(train(Dropped(), Loss(), X, recipe=recipe, generator=seeded()).net.value))  # type: ignore[arg-type]
        assert torch.equal(torch.get_rng_state(), before)
    assert values[0] == values[1]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_finds_the_minimum(schedule: Any, average: float) -> None:
    fit = fitted(Recipe(steps=600, rate=0.1, schedule=schedule, average=average, patience=None))
    assert abs(float(fit.net.value) - 3) < 0.2  # type: ignore[arg-type]
    assert not fit.net.training
    assert not any(p.requires_grad for p in fit.net.parameters())
    rates = fit.history["rate"]
    assert (rates[-1] < 1e-3) == (schedule != "constant")
    assert (rates[0] < rates[1]) == (schedule == "linear")  # it rises for 180 steps, and there is a check every 100
    assert "600 steps of 128 samples" in str(fit)
    assert "ran to the end" in str(fit)


def test_the_average_forgets_where_it_began() -> None:
    """A decay of .999 alone would keep .999^300 = .74 of the first weights."""
    far = train(Mean(100.0), Squares(), X, recipe=Recipe(steps=2000, rate=1.0, average=0.999), generator=seeded())
    assert abs(float(far.net.value) - 3) < 0.2  # type: ignore[arg-type]


def test_the_average_is_the_recursion_it_claims() -> None:
    seen: list[float] = []

    class Watched(Squares):
        def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            if len(x) == 8:
                seen.append(float(net.value.detach()))  # type: ignore[operator]
            return super().loss(net, x)

    recipe = Recipe(steps=31, batch=8, rate=0.1, schedule="constant", average=0.8, patience=None)
    fit = train(Mean(), Watched(), X, recipe=recipe, generator=seeded())
    average = seen[1]  # after the first step
    for n, value in enumerate(seen[2:], start=1):
        average += (1 - min(0.8, (1 + n) / (10 + n))) * (value - average)
    n = len(seen) - 1
    last = (float(fit.net.value) - average) / (1 - min(0.8, (1 + n) / (10 + n))) + average  # type: ignore[arg-type]
    assert abs(last - seen[-1]) < 0.3  # one more step of Adam, at most its rate away
    assert abs(float(fit.net.value) - average) < 0.1  # type: ignore[arg-type]


def test_it_stops_when_held_out_samples_get_worse() -> None:
    """A network that can only memorise: a table with one number per sample."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 1))

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.net(x[:, :20])
            return answer

    class Regression:
        def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            answer: Tensor = (net(x) - x[:, 20:]).square().mean()
            return answer

    noise = torch.randn(100, 21, generator=seeded())
    recipe = Recipe(steps=5000, batch=50, rate=1e-2, average=0.0, check_every=20, patience=5)
    fit = train(Table(), Regression(), noise, recipe=recipe, generator=seeded())
    assert "stopped early" in str(fit)
    assert fit.history["step"][-1] < 1000
    held = fit.history["held_out"]
    assert held[fit.history["step"].index(fit.best)] < held[-1]
    to_the_end = train(Table(), Regression(), noise, recipe=Recipe(steps=100, patience=None), generator=seeded())
    assert to_the_end.best == 100


@pytest.mark.parametrize(("apart", "early"), [(1.0, False), (6.0, True)])
def test_the_latest_wins_of_those_that_held_out_samples_cannot_tell_apart(apart: float, early: bool) -> None:
    """It begins at the mean of the held-out samples, and goes to that of the others, so many standard errors away.

    The losses of the two differ by half as many: by (h - v)^2 / 2 with a standard error of |h - v| std / sqrt(n).
    """
    recipe = Recipe(steps=4000, batch=512, rate=0.01, average=0.0, check_every=100, patience=40)
    seed = fitted(Recipe(1)).seed
    rows = training.split(torch.arange(len(X)), recipe, seed)
    kept, held = (X[part] - X[part].mean() for part in rows)
    x = torch.empty_like(X)
    x[rows[0]], x[rows[1]] = kept + apart * held.std() / len(held) ** 0.5, held
    fit = train(Mean(0.0), Squares(), x, recipe=recipe, generator=seeded())
    assert fit.seed == seed
    assert (fit.best < recipe.steps) == early


def test_it_stops_when_nothing_more_is_gained() -> None:
    recipe = Recipe(steps=4000, rate=0.1, average=0.0, check_every=20, patience=5)
    fit = fitted(recipe)
    assert "stopped early" in str(fit)
    steps, held = fit.history["step"], fit.history["held_out"]
    assert steps[-1] - steps[held.index(min(held))] == 5 * recipe.check_every
    assert abs(float(fit.net.value) - 3) < 0.3  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_stops_at_once() -> None:
    class Broken(Squares):
        def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            return super().loss(net, x) * float("nan")

    with pytest.raises(DivergenceError, match="a finite training loss, got nan at step 50"):
        train(Mean(), Broken(), X, recipe=Recipe(steps=100, check_every=50), generator=seeded())


def test_a_stopped_training_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(steps=400, check_every=50, average=0.9)
    whole = fitted(recipe)
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    calls = 0

    class Fragile(Squares):
        def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 230:
                raise KeyboardInterrupt
            return super().loss(net, x)

    path = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        train(Mean(), Fragile(), X, recipe=recipe, generator=seeded(), checkpoint=path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["header"])
    assert {"net", "loss", "recipe", "samples", "versions"} == set(header)
    again = train(Mean(), Fragile(), X, recipe=recipe, generator=seeded(), checkpoint=path)
    assert calls < 230 + 400
    assert torch.equal(again.net.value, whole.net.value)  # type: ignore[arg-type]
    assert again.history == whole.history
    # finished work is not repeated; without a seed, the seed of the file is used
    before = calls
    assert train(Mean(), Fragile(), X, recipe=recipe, checkpoint=path).seed == again.seed
    assert calls == before


SCRIPT = """
import sys, torch
from scoremh import Recipe, datasets, fit_score, training
training.SAVE_SECONDS = 0.0
x = datasets.moons(500, generator=torch.Generator().manual_seed(0))
recipe = Recipe(steps=1500, check_every=25)
checkpoint = sys.argv[2] if len(sys.argv) > 2 else None
fit = fit_score(x, recipe=recipe, generator=torch.Generator().manual_seed(1), checkpoint=checkpoint)
fit.save(sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    whole = subprocess.Popen([*command, tmp_path / "whole"], env=environment)
    arguments = [tmp_path / "killed", tmp_path / "checkpoint"]
    process = subprocess.Popen([*command, *arguments], env=environment)
    deadline = time.monotonic() + 120
    while not (tmp_path / "checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed").exists()  # it was killed in time
    subprocess.run([*command, *arguments], env=environment, check=True)
    assert whole.wait(timeout=120) == 0
    with safe_open(tmp_path / "whole", "pt") as a, safe_open(tmp_path / "killed", "pt") as b:
        assert set(a.keys()) == set(b.keys())
        for key in a.keys():  # noqa: SIM118  # a file, not a dict
            assert torch.equal(a.get_tensor(key), b.get_tensor(key)), key


def test_a_checkpoint_of_another_training_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    recipe = Recipe(steps=20, check_every=10)
    fitted(recipe, checkpoint=path)
    with pytest.raises(ValueError, match="to hold this training, with recipe"):
        fitted(Recipe(steps=30, check_every=10), checkpoint=path)
    with pytest.raises(ValueError, match="to hold this training, with seed"):
        train(Mean(), Squares(), X, recipe=recipe, generator=seeded(5), checkpoint=path)
    with pytest.raises(ValueError, match="with samples"):
        train(Mean(), Squares(), X + 1, recipe=recipe, generator=seeded(), checkpoint=path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="a checkpoint of a training"):
        fitted(recipe, checkpoint=path)


BAD: dict[str, Callable[[], Any]] = {
    "steps": lambda: Recipe(steps=0),
    "batch": lambda: Recipe(batch=-1),
    "rate": lambda: Recipe(rate=0.0),
    "average": lambda: Recipe(average=1.0),
    "held_out": lambda: Recipe(held_out=0.0),
    "clip": lambda: Recipe(clip=-1.0),
    "patience": lambda: Recipe(patience=0),
    "hold out": lambda: train(Mean(), Squares(), X[:1]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_recipes_raise_errors(case: str) -> None:
    with pytest.raises(ValueError, match=case):
        BAD[case]()


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(Recipe(steps=20, check_every=10), progress=True)
    shown = capsys.readouterr()
    assert "held out" in shown.out + shown.err


# Whether a held-out loss was still falling when training ended, and what a fit is then called.


@pytest.fixture(scope="module")
def score() -> ScoreFit:
    return fit_score(torch.randn(50, 2), recipe=Recipe(steps=20))


@pytest.mark.parametrize(
    ("held_out", "falling"),
    [
        ([2.0, 1.8, 1.6, 1.4, 1.2, 1.0], True),
        ([2.0, 1.2, 1.05, 1.02, 1.01, 1.0], False),  # little of all that it fell
        ([1.01, 1.0, 1.02, 1.0, 1.03, 1.005], False),  # chance
        ([2.0, 1.0, 1.1, 1.2, 1.3, 1.4], False),
        ([2.0, 1.0, 1.5], True),  # too few checks to tell
    ],
)
def test_a_loss_that_falls_to_the_end_is_recognised(score: ScoreFit, held_out: list[float], falling: bool) -> None:
    steps = np.linspace(0, score.recipe.steps, len(held_out) + 1)[1:]
    history = {"step": steps.tolist()}
    found = dataclasses.replace(score, history=history | {"held_out": held_out})
    assert still_falling(found) == falling
    stopped = {"step": [0.5 * step for step in history["step"]]}
    assert not still_falling(dataclasses.replace(score, history=stopped | {"held_out": held_out}))


@pytest.mark.slow
def test_the_advice_for_a_brief_training_is_more_steps() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(2000, 2)) * [0.1, 1] + random.choice([-1.0, 1.0], size=(2000, 1))
    model = ScoreMH(acceptance="simpson", score_steps=400, verbose=False, random_state=0).fit(rows)
    assert still_falling(model.score_)
    said = model.diagnose().verdict
    assert said.level == "good" or said.advice.startswith("Leave score_steps out: 400 ")

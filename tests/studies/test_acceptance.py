"""Learned acceptances beside rules without training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scoremh import RandomWalk, Recipe, Target, balance_matching, fit_score
from studies import acceptance, learning
from studies.acceptance import cells, exactness, laws, rules
from tests.cases import seeded
from tests.studies.cases import is_picture, run_small


def test_a_corner_changes_nothing_where_the_score_is_a_gradient() -> None:
    """And it does where a turn is added: the integral of (-y, x) along the sides and along the diagonal differ."""
    target, walk, corner = rules.OVERLAPPING, RandomWalk(0.3), rules.Corner()
    x = target.sample(1000, generator=seeded())
    assert learning.error(corner, Target(target.score), walk, x) < 1e-5
    turned = Target(lambda x: target.score(x) + x.flip(1) * torch.tensor([-1.0, 1.0]))
    assert learning.error(corner, turned, walk, x) > 0.01


@pytest.mark.slow
def test_acceptances_write_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trainings of a few steps and one seed: the numbers are bad, and the page has them all."""
    brief = Recipe(steps=4, batch=16, check_every=2)
    monkeypatch.setattr(
        learning, "fit_score", lambda x, recipe, generator: fit_score(x, recipe=brief, generator=generator)
    )

    def briefly(*parts: Any, recipe: Recipe | None = None, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=brief, **options)

    monkeypatch.setattr(cells, "fit_acceptance", briefly)
    small = cells.Config((1,), (1, 2, 3), samples=200, fresh=200, chains=50, chain_steps=3, exact=10_000)
    small = replace(
        small,
        test_chains=100,
        test_steps=1,
        variance_chains=50,
        variance_steps=2,
        tuned_draws=20,
        tuned_runs=2,
        elsewhere_chains=100,
    )
    monkeypatch.setattr(exactness, "STDS", {name: stds[:1] for name, stds in laws.STDS.items()})
    found, page = run_small(acceptance.STUDY, small, tmp_path)
    assert all(found.kinds.values())
    (untrained,) = found.where("untrained", proposal="MALA")
    assert untrained["Simpson"] < untrained["trapezoid"]
    assert is_picture(tmp_path / "docs" / "acceptance_quality.png")
    for text in (
        "| antisymmetric | 0.",
        "| Simpson | 0.",
        "| `Exact()` | 0, 1.2 | 0.",
        "| learned: potential, metropolis | 0, 1.2 |",
        "| `TwoCoin()` | nowhere | nowhere | nowhere |",
        "0.8225. After 2 steps",
        "| `LineIntegral()` | ",
        "| 25 modes | 4 x |",
    ):
        assert text in page, text

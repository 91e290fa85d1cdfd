"""A score that is a gradient by construction, beside the default."""

import math
from pathlib import Path

import pytest
import torch

from studies import potential
from studies.framework import Records
from tests.studies.cases import made_up, run_small

SMALL = potential.Config(seeds=(21,), sizes=(200,), steps=40, fresh=200, chains=40, chain_steps=10)


def records(error: float, worst: float) -> Records:
    """Return made-up records: the default has errors of 1, the potential these."""
    config = potential.Config(seeds=(21,), sizes=(100, 200))
    found = [
        cell.axes | dict.fromkeys(potential.ERRORS, value)
        for cell in potential.stages(config)[0]
        for value in [{"default": 1.0, "potential": error if cell.axes["size"] == 100 else worst}[cell.axes["net"]]]
    ]
    return made_up(config, learned=found)


@pytest.mark.parametrize(
    ("error", "worst", "better"), [(0.5, 1.05, True), (0.5, 1.2, False), (1.02, 1.02, False)], ids=str
)
def test_a_default_changes_only_where_it_wins_and_loses_nowhere(error: float, worst: float, better: bool) -> None:
    found = records(error, worst)
    assert set(potential.better(found).values()) == {better}
    assert potential.geometric_mean(potential.ratios(found, "score_error")) == pytest.approx(math.sqrt(error * worst))


def test_errors_between_modes_forget_a_constant_but_not_one_of_each_mode() -> None:
    modes = torch.arange(100) % 2
    assert potential.between_modes(torch.full((100,), 3.0), modes) == 0
    assert potential.between_modes(0.5 * modes, modes) == pytest.approx(0.5)


def test_modes_are_components_or_halves_of_a_curve() -> None:
    law, curve = potential.LAWS["three"][1], potential.LAWS["moons"][1]
    assert potential.mode(law, law.means).tolist() == [0, 1, 2]
    assert potential.mode(curve, curve.means).tolist() == [0] * 200 + [1] * 200


@pytest.mark.slow
def test_potentials_write_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("three", "moons", "ten"):
        monkeypatch.delitem(potential.LAWS, name)
    found, page = run_small(potential.STUDY, SMALL, tmp_path)
    assert len(found.kinds["learned"]) == 2
    assert all(("potential" in record) == (record["net"] == "potential") for record in found.kinds["learned"])
    assert "the default stays as it is" in page or "the default should change" in page

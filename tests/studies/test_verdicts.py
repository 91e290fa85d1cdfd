"""Whether verdicts are right: how that is counted, how draws are spoiled, and the page."""

from itertools import chain
from pathlib import Path

import pytest
import torch

from scoremh.evaluation import LEVELS
from studies import verdicts
from studies.framework import Records, pages
from studies.verdicts.laws import LAWS
from tests.cases import seeded
from tests.studies.cases import made_up

CONFIG = verdicts.Config(seeds=(1,))


def records() -> Records:
    """Return made-up records: fresh rows are good, the rest is not to be used, and one of these is taken for good."""
    found = []
    for cell in chain.from_iterable(verdicts.stages(CONFIG)[1::2]):
        good = cell.axes["defect"] == "perfect"
        missed = cell.axes["defect"] == "leaking" and cell.axes["law"] == "shell"
        level = "good" if good or missed else "do not use"
        numbers: dict[str, float | str] = dict.fromkeys(("c2st_excess", "trees_excess", "beyond_excess"), 0.01)
        numbers["w1_ratio"] = 1.0 if good else 3.0
        numbers |= {"verdict_held": "undecided", "verdict_fresh": "do not use"} if good else {}
        found.append(cell.axes | numbers | {"verdict": level, "passes": good, "reason": ""})
    return made_up(CONFIG, fitted=[], judged=found)


@pytest.mark.parametrize(
    ("level", "passes", "right"),
    [
        ("good", True, True),
        ("good", False, False),
        ("do not use", True, False),
        ("do not use", False, True),
        ("usable", True, True),
        ("usable", False, True),
    ],
)
def test_good_keeps_every_limit_and_do_not_use_breaks_one(level: str, passes: bool, right: bool) -> None:
    assert verdicts.right({"verdict": level, "passes": passes}) == right


def test_the_page_counts_and_names_what_is_wrong() -> None:
    found = records()
    judged = list(found.kinds["judged"])
    assert len(verdicts.decided(judged)) == len(judged) == 10 * 10
    assert verdicts.share_right(judged) == pytest.approx(99 / 100)
    assert len(verdicts.flips(judged)) == 10
    page = pages.render(verdicts.STUDY, found)
    assert "and 99.0 % of these are right" in " ".join(page.split())
    assert 'a shell, 5 columns, seed 1, 3 % in a false mode: "good", with W1 3.00 times its floor' in " ".join(
        page.split()
    )
    assert "(at least 95 %: reached)" in page


def test_codes_have_no_order_and_the_same_share_of_the_rows() -> None:
    rows = verdicts.drawn("trips", "coded", 4000, seeded())
    codes, counts = rows[:, 0].unique(return_counts=True)
    assert len(codes) == verdicts.CODES
    assert counts.min() > 40
    assert counts.max() < 180
    assert torch.equal(rows[:, 1:], verdicts.drawn("trips", "good", 4000, seeded())[:, 1:])


def test_draws_are_spoiled_as_they_say() -> None:
    generator = seeded()
    draws = torch.randn(3000, 2, generator=generator) @ torch.tensor([[1.0, 0.9], [0.0, 0.3]])
    shuffled = verdicts.shuffled(draws, generator)
    assert torch.equal(shuffled[:, 0], draws[:, 0])
    assert torch.equal(shuffled[:, 1].sort().values, draws[:, 1].sort().values)
    assert abs(float(torch.corrcoef(shuffled.T)[0, 1])) < 0.1
    dropped = verdicts.dropped(draws, generator)
    assert len(dropped) == len(draws)
    assert 0.5 < len(dropped.unique(dim=0)) / len(draws) < 0.8
    far = verdicts.leaking(torch.randn(3000, 2, generator=generator), generator).norm(dim=1) > 4
    assert float(far.double().mean()) == pytest.approx(0.03, abs=0.003)


@pytest.mark.slow
def test_fresh_rows_keep_the_limits_and_others_do_not() -> None:
    generator = seeded()
    rows = LAWS["blobs"][1](2000, generator)
    fresh = LAWS["blobs"][1](2000, generator)
    assert verdicts.truth(fresh, "blobs", "good", rows, generator)["passes"]
    assert not verdicts.truth(fresh + 1, "blobs", "good", rows, generator)["passes"]


@pytest.mark.slow
def test_a_fit_is_diagnosed(tmp_path: Path) -> None:
    small = verdicts.Config(seeds=(1,), rows=200, draws=100, others=1000, short_steps=20)
    for fit, made in (("short", 20), ("poor", 40)):
        assert verdicts.Fitted("survey", 1, fit).measure(small, tmp_path)["steps_made"] == made
    found = verdicts.Judged("survey", 1, "short").measure(small, tmp_path)
    assert found["verdict"] in LEVELS
    assert set(verdicts.LIMITS) <= set(found)

"""Tables: the measurements, the peers, and the page."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from scoremh import Recipe, ScoreMH
from studies import tables
from studies.tables import peers
from studies.tables.cells import Config, beyond, broken
from studies.tables.data import TABLES, standard_units
from tests.cases import seeded
from tests.studies.cases import made_up, run_small, said

SMALL = Config((1,), ("one", "counts"), 60, 80, floors=2, chains=20, steps=20, timed=(100, 2))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_rows_to_learn_from_and_others_to_test_on(name: str) -> None:
    train, judge, other = TABLES[name].split(1, 50)
    assert list(train.columns) == list(judge.columns) == list(other.columns)
    assert not train.isna().any().any()
    units = standard_units(judge, train, robust=TABLES[name].robust)
    assert np.isfinite(units).all()
    if TABLES[name].law is None:  # halves of an open table
        assert abs(len(train) - len(judge)) <= 1
    assert broken(TABLES[name], judge) == 0


def test_categories_have_unit_variance_together() -> None:
    rows = pd.DataFrame({"c": pd.Categorical(["a", "a", "b", "c"] * 50)})
    assert standard_units(rows, rows).var(0).sum() == pytest.approx(1)


def test_shares_beyond_the_range_count_rows() -> None:
    train = pd.DataFrame({"a": [0.0, 1.0], "b": [0, 5]})
    rows = pd.DataFrame({"a": [0.5, 2.0, 2.0, 0.1], "b": [1, 1, 9, 9]})
    assert beyond(train, rows) == 0.75


def test_a_copula_has_the_margins_and_the_correlation_of_its_rows() -> None:
    g = seeded()
    z = torch.randn(4000, 2, generator=g, dtype=torch.float64) @ torch.tensor([[1.0, 0.8], [0.0, 0.6]]).double()
    drawn = peers.copula(z.exp(), 4000, g)
    assert float(torch.corrcoef(drawn.log().mT)[0, 1]) == pytest.approx(0.8, abs=0.04)
    torch.testing.assert_close(drawn.median(0).values, z.exp().median(0).values, atol=0.1, rtol=0)
    assert bool((drawn >= z.exp().amin(0)).all())


def test_peers_draw_rows_like_those_of_a_mixed_table() -> None:
    train = TABLES["counts"].split(1, 10)[0][:200]
    for name in ("kernel", "copula"):
        drawn = peers.drawn(name, train, 50, seeded())
        pd.testing.assert_series_equal(drawn.dtypes, train.dtypes)


@pytest.mark.slow
def test_the_study_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "FLOW_RECIPE", Recipe(steps=50))
    records, page = run_small(tables.STUDY, SMALL, tmp_path)
    assert "one column of three modes" in page
    assert all(one["broken"] == 0 for one in records.where("draws", method="scoremh"))


def test_the_timed_fit_has_the_defaults() -> None:
    config, defaults = Config(), ScoreMH()
    assert (config.steps, config.acceptance) == (defaults.score_steps, defaults.acceptance)


def test_claims_compare_with_floors_and_peers() -> None:
    one = {"w1": 1.2, "w1_flow": 1.4, "w1_short": 1.0, "w1_long": 1.0, "c2st": 0.55, "beyond": 0.02, "broken": 0.0}
    one |= {"p_value": 0.5, "fit_seconds": 40.0}
    rows = [{"method": "scoremh", **one}, {"method": "kernel", **one, "w1": 1.0}]
    rows += [{"method": method, **one, "w1": 1.5} for method in ("copula", "spline flow")]
    records = made_up(
        Config(tables=("one",)),
        draws=[{"table": "one", "seed": 1} | row for row in rows],
        floor=[{"table": "one", "seed": 1, "w1": 1.0, "c2st": 0.5, "beyond": 0.0}],
        time=[{"rows": 1, "columns": 1, "seconds": 130.0}],
        chance=[{"table": "one", "fresh_low": 0.8, "fresh_high": 1.2}],
    )
    found = tables.STUDY.verdicts(records)
    title = TABLES["one"].title
    for claim in ("floor", "peers", "classifier", "range"):
        assert found[claim] == {title: False}, claim
    assert found["steps"] == found["test"] == {title: True}
    assert found["bounds"] == {}
    assert found["time"] is False
    assert f"| {title} | 1.20 | 1.40 | **1.00** |" in said(tables.STUDY, records)

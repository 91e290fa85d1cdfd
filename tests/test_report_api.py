"""Reports and pictures of chains and of estimators, and what is said where a library for them is missing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scoremh import Chains, ScoreMH, datasets
from scoremh.report import chain_contents, html, images
from tests.report_cases import chains, contents, figures, normal, numbers

BRIEF: dict[str, Any] = {
    "score_steps": 20,
    "acceptance_steps": 20,
    "annealing_steps": 1,
    "chain_steps": 6,
    "noise_level": 0.6,
}


@pytest.fixture(scope="module")
def model() -> ScoreMH:
    x = datasets.moons(400, generator=torch.Generator().manual_seed(0)).numpy()
    return ScoreMH(**BRIEF, verbose=False, random_state=0).fit(x)


@pytest.mark.parametrize("event", [(1,), (2,), (5,), (8, 8)])
def test_chains_alone_have_a_report(event: tuple[int, ...], tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, *event))
    drawn.report(tmp_path / "alone.html")
    page = (tmp_path / "alone.html").read_text()
    assert "Samples beside all draws" in page
    assert "none: no reference" in page
    assert "<h2>Metrics" not in page
    drawn.report(tmp_path / "beside.html", normal(60, *event, seed=2))
    page = (tmp_path / "beside.html").read_text()
    assert "Samples beside reference" in page
    assert "<h2>Metrics" in page


def test_a_report_of_chains_has_their_cautions_and_those_of_the_evaluation() -> None:
    stuck = normal(40, 1, 2).expand(-1, 30, -1) + 1e-3 * normal(40, 30, 2, seed=1)
    shown = chain_contents(chains(stuck), normal(100, 2, seed=3) + 5)
    assert [getattr(one, "kind", "") for one in shown.warnings] == ["r_hat", "p_value"]
    assert "The draws can be told apart from the reference" in str(shown.warnings[1])
    assert shown.metrics["last draws"]["p_value"] == 0.001


def test_a_reference_too_small_to_compare_with_is_shown() -> None:
    shown = chain_contents(chains(normal(40, 30, 2)), normal(10, 2))
    assert not shown.metrics
    assert shown.about["distances"] == "none: fewer than 20 rows to compare with"


def test_an_estimator_writes_a_report_with_held_out_or_given_rows(model: ScoreMH, tmp_path: Path) -> None:
    model.report(tmp_path / "held.html")
    page = (tmp_path / "held.html").read_text()
    assert "Score MALA (potential)" in page
    assert "40 held-out rows" in page
    assert "<h2>Metrics" in page
    assert "20 points each, to held-out rows" in page
    assert "R-hat" in page
    given = datasets.moons(70, generator=torch.Generator().manual_seed(1)).numpy()
    model.report(tmp_path / "given.html", given)
    page = (tmp_path / "given.html").read_text()
    assert "70 given rows" in page
    points = figures(page)[0]["data"][0]
    np.testing.assert_array_equal(np.stack([numbers(points["x"]), numbers(points["y"])], 1), given)


@pytest.mark.parametrize("event", [(1,), (2,), (3,), (4, 4)])
def test_chains_have_a_static_picture(event: tuple[int, ...], tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, *event))
    figure = drawn.plot(tmp_path / "chains.png")
    assert (tmp_path / "chains.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == (3 if event == (1,) else 5)  # draws, traces, ranks
    trace = figure.axes[1].lines[0].get_ydata()
    np.testing.assert_array_equal(np.asarray(trace), drawn.draws[0].flatten(1)[:, 0].double().numpy())
    if event != (1,):
        assert len(np.asarray(figure.axes[0].collections[0].get_offsets())) == 1200


def test_a_picture_leaves_out_what_is_not_finite_and_refuses_nothing_to_show(tmp_path: Path) -> None:
    draws = normal(40, 30, 2)
    draws[3, 4] = torch.nan
    figure = chains(draws).plot()
    assert len(np.asarray(figure.axes[0].collections[0].get_offsets())) == 1199
    with pytest.raises(ValueError, match="chains with a finite draw, got none"):
        chains(draws * torch.nan).plot()
    with pytest.raises(ValueError, match="at least one panel, got none"):
        images.scatter_panels({}, tmp_path / "none.png")


def test_panels_have_the_axes_of_the_first_where_others_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(images, "save_figure", lambda figure, path: drawn.append(figure))
    fresh, diverged = normal(500, 2), 1e30 * normal(500, 2)
    diverged[0] = torch.nan
    images.scatter_panels({"fresh": fresh, "near": fresh + 1, "ULA": diverged}, tmp_path / "moons.png")
    low, high = drawn[0].axes[0].get_xlim()
    assert -20 < low < float(fresh.min()) < float(fresh.max()) < high < 20


MISSING: dict[str, tuple[tuple[str, ...], Any]] = {
    "jinja2": (("jinja2",), lambda: html(contents(2))),
    "plotly": (("plotly", "plotly.offline"), lambda: html(contents(2))),
    "PIL": (("PIL",), lambda: html(contents(8, 8))),
    "matplotlib": (("matplotlib", "matplotlib.figure"), lambda: chains(normal(4, 5, 2)).plot()),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_library_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, call = MISSING[name]
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'scoremh\[report\]'") as raised:
        call()
    assert name in str(raised.value)


def test_without_exact_distances_a_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    shown = chain_contents(chains(normal(40, 30, 2)), normal(100, 2))
    assert shown.about["distances"] == "none: pip install 'scoremh[metrics]'"
    assert not shown.metrics


def test_the_command_without_its_library_says_what_to_install() -> None:
    script = "import sys; sys.modules['cyclopts'] = None; from scoremh.cli import main; main(['doctor'])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("scoremh: expected cyclopts")
    assert "pip install 'scoremh[cli]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_importing_the_report_loads_no_plotting_library() -> None:
    names = ("matplotlib", "plotly", "jinja2", "PIL", "ot", "cyclopts")
    script = f"import sys, scoremh.report.images, scoremh.cli; print([n for n in {names} if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_report_is_of_the_chains_that_were_saved(tmp_path: Path) -> None:
    drawn = chains(normal(40, 30, 2))
    drawn.save(tmp_path / "chains.nc")
    Chains.load(tmp_path / "chains.nc").report(tmp_path / "a.html")
    drawn.report(tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()

"""The experiments run, small, and write what they say."""

import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from scoremh.plots.lines import _looks

from scoremh import RandomWalk, Recipe, Target, balance_matching, fit_score, plots, score_matching
from scoremh.experiments import _acceptance_cells, _cells, acceptance, scores


def test_a_picture_without_panels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.scatter_panels({}, tmp_path / "empty.png")
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.space_panels({}, tmp_path / "empty.png")
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.field_panels({}, torch.randn(10, 2), tmp_path / "empty.png")
    with pytest.raises(ValueError, match="expected at least one curve, got none"):
        plots.curves({}, tmp_path / "empty.png", labels=("x", "y"))
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.histogram_panels({}, tmp_path / "empty.png")
    with pytest.raises(ValueError, match="expected at least one panel, got none"):
        plots.map_panels({}, tmp_path / "empty.png", extent=(0.0, 1.0, 0.0, 1.0))


def test_curves_of_a_family_share_a_colour_or_a_kind_of_line() -> None:
    families = {", ".join(kind): kind for kind in _acceptance_cells.KINDS}
    looks = _looks(list(families), families)
    assert len(set(looks.values())) == len(families)
    for place in (0, 1):  # colours by the first word, kinds of line by the second
        for a, b in product(families, families):
            assert (looks[a][place] == looks[b][place]) == (families[a][place] == families[b][place])


@pytest.mark.slow
def test_scores_fill_in_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fits of a few steps: the numbers are bad, and the page says so."""
    small = {"SAMPLES": 300, "FRESH": 200, "JUDGED": 100, "SEEDS": (1,)}
    for name, value in small.items():
        monkeypatch.setattr(scores, name, value)
    monkeypatch.setattr(scores, "DATASETS", {name: scores.DATASETS[name] for name in list(scores.DATASETS)[:3]})
    for name, preset in score_matching.PRESETS.items():
        monkeypatch.setitem(score_matching.PRESETS, name, preset._replace(steps=20))

    def quick(x: torch.Tensor, loss: Any = None, *, preset: str | None = None, **options: Any) -> Any:
        brief: Any = {} if preset else {"recipe": Recipe(steps=20, check_every=10)}
        return score_matching.fit_score(x, loss, preset=preset, **brief, **options)

    monkeypatch.setattr(scores, "fit_score", quick)
    cells: dict[str, Any] = {f"known / {law} / 1": scores.known(law, 1) for law in scores.LAWS}
    for data in scores.DATASETS:
        for loss in scores.LOSSES:
            cells[f"unknown / {data} / {loss}"] = scores.unknown(data, loss, tmp_path)
    parts = scores.sections(cells)
    assert "reached on all but" in parts["known"]
    assert "no loss fell so low" in parts["trap"]
    page = (Path(__file__).parent.parent / "docs" / "scores.md").read_text()
    filled = _cells.fill(page, parts)
    assert all(part in filled for part in parts.values())
    assert _cells.fill(filled, parts) == filled
    assert _cells.fill(filled, {"trap": "nothing"}).count("<!-- end -->") == 3
    scores.pictures(cells, tmp_path, tmp_path)
    for name in ("moons", "pinwheel", "trap"):
        assert (tmp_path / f"scores_{name}.png").read_bytes().startswith(b"\x89PNG")


def test_scores_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"all": 0.5}
    done = {f"known / {law} / {seed}": cell for law in scores.LAWS for seed in scores.SEEDS}
    done |= {f"unknown / {data} / {loss}": cell for data in scores.DATASETS for loss in scores.LOSSES}
    (tmp_path / "scores.json").write_text(json.dumps(done))
    monkeypatch.setattr(scores, "_cell", partial(pytest.fail, "computed again"))
    assert scores.cells_of(tmp_path, workers=1) == done


def test_the_page_of_acceptances_says_what_the_results_say() -> None:
    docs = Path(__file__).parent.parent / "docs"
    found = json.loads((docs / "results" / "acceptance.json").read_text())
    page = (docs / "acceptance.md").read_text()
    for name, section in acceptance.sections(found["cells"], found["untrained"]).items():
        assert f"<!-- {name} -->\n{section}\n<!-- end -->" in page, name


def test_a_corner_changes_nothing_where_the_score_is_a_gradient() -> None:
    """And it does where a turn is added: the integral of (-y, x) along the sides and along the diagonal differ."""
    law, walk, corner = _acceptance_cells.OVERLAPPING, RandomWalk(0.3), _acceptance_cells.Corner()
    x = law.sample(1000, generator=torch.Generator().manual_seed(0))
    assert _acceptance_cells.error(corner, Target(law.score), walk, x) < 1e-5
    turned = Target(lambda x: law.score(x) + x.flip(1) * torch.tensor([-1.0, 1.0]))
    assert _acceptance_cells.error(corner, turned, walk, x) > 0.01


@pytest.mark.slow
def test_acceptances_fill_in_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trainings of a few steps and one seed: the numbers are bad, and the page has them all."""
    cells, brief = _acceptance_cells, Recipe(steps=4, batch=16, check_every=2)
    small = {"SAMPLES": 200, "FRESH": 200, "CHAINS": 50, "SEEDS": (1,), "BUDGETS": (1, 2, 3), "STEPS": 3}
    small |= {
        "RULES": dict(list(cells.RULES.items())[:2]),
        "KINDS": [kind for kind in cells.KINDS if kind[1] == "proposed"],
    }
    for name, value in small.items():
        monkeypatch.setattr(cells, name, value)
    monkeypatch.setattr(
        cells, "fit_score", lambda x, recipe, generator: fit_score(x, recipe=brief, generator=generator)
    )

    def briefly(*parts: Any, recipe: Recipe | None = None, **options: Any) -> Any:
        return balance_matching.fit_acceptance(*parts, recipe=brief, **options)

    monkeypatch.setattr(cells, "fit_acceptance", briefly)
    out = tmp_path / "out"
    found = cells.run(out, workers=1)
    assert {name.split(" / ")[0] for name in found} == {"score", "quality", "decisions", "simpson", "bias"}
    free = cells.untrained(out)
    assert free["MALA"]["Simpson"] < free["MALA"]["trapezoid"]
    acceptance.pictures(found, free, tmp_path)
    assert (tmp_path / "acceptance_quality.png").read_bytes().startswith(b"\x89PNG")
    page = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("quality", "decisions", "rules"))
    filled = _cells.fill(page, acceptance.sections(found, free))
    for text in (
        "| antisymmetric, proposed | 0.",
        "| Simpson | 0.",
        "The least error of a learned form, random walk: ",
        "| moons, MALA(step_size=0.02) | potential |",
        "| moons, MALA(step_size=0.02) | Simpson | none |",
        "| `Exact()` | a log density | 0, 1.2 | none | 0.",
        "| `Learned`, potential, metropolis | samples, a score | 0, 1.2 |",
        "have a distance of 0.",
    ):
        assert text in filled, text
    again = json.loads((out / cells.CELLS_FILE).read_text())
    assert again == found
    assert cells.run(out, workers=1) == found  # nothing is computed twice
    few = {name: cell for name, cell in found.items() if not name.startswith("quality / free")}
    assert "| free, proposed |  |" in acceptance.sections(few, free)["quality"]  # what is not there yet is left open

"""Whether the documents and the examples are true: they run, printed numbers are right, links lead somewhere."""

import importlib.util
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import scoremh
from scoremh import Exact, cli, diagnostics, metropolis_hastings, targets
from tests.cases import PROPOSALS, RULES, seeded
from tests.estimator_cases import BRIEF, write_table

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), ROOT / "llms.txt", *sorted((ROOT / "studies").glob("*/README.md")), *PAGES]
NAMED = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # which may name what is gone
RUN = "developers.md", "correctness.md", "start.md"  # by a test of its own, and when the site is built
PROGRAMS = [path for path in PAGES if path.parent.name == "docs" and path.name not in RUN]
WITH_TRAINING = "learning.md", "noise-levels.md", "diffusion-models.md"
PLACEHOLDERS = "docs/results/NAME.json", "studies/templates/NAME.md"
MAX_README_LINES = 115


def blocks(path: Path) -> str:
    """Return the Python blocks and cells of a document as one program, each on its own line numbers."""
    inside, lines = False, []
    for line in path.read_text().splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line in ("```python", "```{code-cell}") if fence else inside
    return "\n".join(lines)


def run(path: Path) -> dict[str, Any]:
    """Run a document and return its names."""
    names: dict[str, Any] = {"__name__": "document"}
    exec(compile(blocks(path), str(path), "exec"), names)
    return names


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in WITH_TRAINING)) for path in PROGRAMS],
)
def test_the_examples_of_a_document_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(path)


@pytest.mark.slow
def test_the_readme_runs_and_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README shows as printed is so: words to the letter, numbers to 0.01, since last bits differ."""
    monkeypatch.chdir(tmp_path)
    run(ROOT / "README.md")
    shown = re.search(r"^true: .*?(?=\n```)", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    printed = re.search(r"^true: (.*\n){3}", capsys.readouterr().out, re.MULTILINE)
    assert shown
    assert printed
    for line, expected in zip(printed[0].splitlines(), shown[0].splitlines(), strict=True):
        (label, number), (expected_label, expected_number) = (text.rsplit(": ", 1) for text in (line, expected))
        assert label == expected_label
        assert float(number) == pytest.approx(float(expected_number), abs=0.01)


@pytest.mark.slow
def test_the_skeletons_for_developers_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(ROOT / "docs" / "developers.md")
    g, target = seeded(), targets.Gaussian([0.3, -0.2])
    for proposal, rule in [
        (names["LaplaceWalk"](1.5), Exact()),
        (names["Drift"](0.3, 1.0), Exact()),
        (names["LaplaceWalk"](1.5), names["Midpoint"]()),  # exact on a Gaussian
    ]:
        kernel = metropolis_hastings(target, proposal, rule)
        verdict = diagnostics.stationarity(kernel, target, chains=50_000, generator=g)
        assert verdict.p_value > 1e-4, verdict


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


COMMANDS = {
    "README.md": ({"fit", "sample"}, "new.csv"),
    "docs/start.md": ({"fit", "sample", "evaluate", "report", "doctor"}, "run/report.html"),
}


@pytest.mark.parametrize("document", ["README.md", pytest.param("docs/start.md", marks=pytest.mark.slow)])
def test_the_commands_of_a_document_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "data.csv")
    write_table(tmp_path / "test.csv", 100, seed=9)
    wine = {"quality": np.arange(200) % 6, "share": np.random.default_rng(0).uniform(size=200)}
    pd.DataFrame(wine).to_csv(tmp_path / "wine.csv", index=False)
    text = (ROOT / document).read_text()
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^scoremh (.*)$", text, re.MULTILINE)]
    commands, made_file = COMMANDS[document]
    assert {words[0] for words in lines} == commands
    for words in lines:
        cli.main([*words, *(BRIEF if words[0] == "fit" else ["--quiet"])])
    assert (tmp_path / made_file).exists()


@pytest.mark.parametrize("document", [*COMMANDS, "CONTRIBUTING.md"])
def test_the_make_commands_of_a_document_exist(document: str) -> None:
    made = re.findall(r"^make (\w+)", (ROOT / document).read_text(), re.MULTILINE)
    rules = (ROOT / "Makefile").read_text()
    assert made
    assert all(f"\n{name}:" in rules for name in made)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)  # code has no links
    for file, section in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
        page = path.parent / file if file else path
        assert page.exists(), file
        assert not section or section in anchors(page), f"{file}#{section}"


def anchors(page: Path) -> list[str]:
    """Return the names by which a page's sections are linked to: lower case, hyphens for blanks, no other signs."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


@pytest.mark.parametrize("path", NAMED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path: Path) -> None:
    """A document names files of the repository by their path from its root."""
    folders = "benchmarks|constraints|docs|examples|recipe|src|studies|tests"
    named = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*\w\.(?:md|py|json|txt|yaml|png)\b", path.read_text())
    assert [name for name in named if not (ROOT / name).exists() and name not in PLACEHOLDERS] == []


def test_the_map_of_the_code_names_every_module() -> None:
    text = (ROOT / "docs" / "developers.md").read_text()
    source = ROOT / "src" / "scoremh"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if path.name != "__init__.py"}
    tops = {name if "/" not in name else name.split("/")[0] + "/" for name in modules}
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert tops <= named, tops - named


def rows(path: Path, opening: str) -> str:
    """Return the rows of the table of a document whose first line opens so."""
    found = re.search(rf"^{re.escape(opening)}.*\n(?:\|.*\n)+", path.read_text(), re.MULTILINE)
    assert found, opening
    return found[0]


def test_tables_name_every_rule_and_proposal() -> None:
    rules = {type(rule).__name__ for rule in RULES.values()}
    every = rules | {type(proposal).__name__ for proposal in PROPOSALS.values()}
    for path, opening, wanted in [
        (ROOT / "README.md", "| rule |", rules),
        (ROOT / "docs" / "choosing.md", "| noun |", every),
        (ROOT / "docs" / "api" / "index.md", "| name |", every),
    ]:
        named = set(re.findall(r"`(\w+)", rows(path, opening)))
        assert wanted <= named, (path.name, wanted - named)


def test_the_listing_of_the_api_is_current() -> None:
    spec = importlib.util.spec_from_file_location("api_listing", ROOT / "docs" / "_extensions" / "api_listing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "API.md").read_text() == module.listing(), "Run: make format"


def test_the_changelog_has_this_version() -> None:
    assert f"## {scoremh.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# The examples run: correctors inside other people's samplers, with their real objects.


EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """Return the module of an example; its library may warn when it is loaded."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def test_a_corrector_in_sbi() -> None:
    """The posterior is known: after a coarse predictor only the accept step gives its variances."""
    pytest.importorskip("sbi", exc_type=ImportError)
    n = 20_000
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example("sbi_corrector").main(n)
    assert torch.equal(before, torch.random.get_rng_state())
    error = (2 / n) ** 0.5
    judged = {name: max(abs(v - 1) for v in variances) / error for name, variances in found.items()}
    assert judged.pop("Metropolis") < 4
    assert min(judged.values()) > 6, judged


@pytest.mark.slow
def test_the_posterior_of_many_observations_of_sbi() -> None:
    """A small network, so that only its bounds and the order of its errors are tested: two standard deviations."""
    pytest.importorskip("sbi", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example("sbi_observations").main(simulations=1000, epochs=20, n=3, particles=200)
    mean, true_mean, std, true_std = found.T
    assert bool(((mean - true_mean).abs() < 2 * true_std).all()), found
    assert bool(((std / true_std).log().abs() < 1).all()), found


@pytest.mark.slow
def test_a_corrector_in_a_diffusers_pipeline() -> None:
    pytest.importorskip("diffusers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example("diffusers_corrector").main(training_steps=60, images=8, inference_steps=6)
    alone, corrected = found["predictor alone"], found["with a corrector"]
    assert alone.shape == corrected.shape == (8, 8, 8)
    assert bool(corrected.isfinite().all())
    assert not torch.equal(alone, corrected)

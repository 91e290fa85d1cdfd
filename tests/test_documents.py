"""Whether the documents are true: examples run, printed numbers are right, links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import scoremh
from scoremh import Exact, diagnostics, metropolis_hastings, targets

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("README.md", "CONTRIBUTING.md")  # by a test of their own


def blocks(path: Path) -> str:
    """Return the Python blocks of a document as one program, each on its own line numbers."""
    inside, lines = False, []
    for line in path.read_text().splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name not in RUN], ids=lambda path: path.name)
def test_the_examples_of_a_document_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(path), str(path), "exec"), {"__name__": "document"})


@pytest.mark.slow
def test_the_readme_and_the_skeletons_of_contributing_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README shows as printed is so: words to the letter, numbers to 0.01, since last bits differ."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "document"}
    exec(compile(blocks(ROOT / "README.md"), "README.md", "exec"), names)
    shown = re.search(r"^true: .*?(?=\n```)", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    printed = re.search(r"^true: (.*\n){4}", capsys.readouterr().out, re.MULTILINE)
    assert shown
    assert printed
    for line, expected in zip(printed[0].splitlines(), shown[0].splitlines(), strict=True):
        (label, number), (expected_label, expected_number) = (text.rsplit(": ", 1) for text in (line, expected))
        assert label == expected_label
        assert float(number) == pytest.approx(float(expected_number), abs=0.01)
    exec(compile(blocks(ROOT / "CONTRIBUTING.md"), "CONTRIBUTING.md", "exec"), names)
    g, target = torch.Generator().manual_seed(0), targets.Gaussian([0.3, -0.2])
    for proposal, rule in [
        (names["LaplaceWalk"](1.5), Exact()),
        (names["Drift"](0.3, 1.0), Exact()),
        (names["LaplaceWalk"](1.5), names["Midpoint"]()),  # exact on a Gaussian
    ]:
        kernel = metropolis_hastings(target, proposal, rule)
        verdict = diagnostics.stationarity(kernel, target, chains=50_000, generator=g)
        assert verdict.p_value > 1e-4, verdict


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for file, section in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / file if file else path
        assert page.exists(), file
        assert not section or section in anchors(page), f"{file}#{section}"


def anchors(page: Path) -> list[str]:
    """Return the names by which a page's sections are linked to: lower case, hyphens for blanks, no other signs."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


def test_the_map_of_the_code_names_every_module() -> None:
    text = (ROOT / "README.md").read_text()
    source = ROOT / "src" / "scoremh"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py") if path.name != "__init__.py"}
    tops = {name if "/" not in name else name.split("/")[0] + "/" for name in modules}
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert tops <= named, tops - named


def test_the_changelog_has_this_version() -> None:
    assert f"## {scoremh.__version__}" in (ROOT / "CHANGELOG.md").read_text()

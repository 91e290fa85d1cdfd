"""The package as a whole: what it imports, and whether its documents are true."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import scoremh
from scoremh import (
    Exact,
    acceptance,
    annealing,
    balance_matching,
    datasets,
    diagnostics,
    estimator,
    evaluation,
    experiments,
    metrics,
    metropolis_hastings,
    networks,
    plots,
    report,
    score_matching,
    targets,
    training,
)
from scoremh.experiments import acceptance as learned_acceptances
from scoremh.experiments import (
    entropy_curve,
    entropy_maps,
    gaussian,
    gev_adjustment,
    gev_learned,
    gev_tails,
    mixture,
    scores,
    step_size,
    table1,
    taylor,
    taylor_vs_learned,
)

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("README.md", "CONTRIBUTING.md")  # by a test of their own
HEAVY = (
    "matplotlib",
    "plotly",
    "jinja2",
    "arviz_stats",
    "arviz_base",
    "xarray",
    "ot",
    "geomloss",
    "dask",
    "distributed",
    "sklearn",
)


def test_importing_loads_no_plotting_transport_or_distributed_library() -> None:
    script = f"import sys, scoremh; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_importing_changes_no_setting_of_torch() -> None:
    script = (
        "import torch; state = lambda: (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), "
        "torch.random.get_rng_state().tolist()); before = state(); import scoremh; print(before == state())"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


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
    g, law = torch.Generator().manual_seed(0), targets.Gaussian([0.3, -0.2])
    for proposal, rule in [
        (names["LaplaceWalk"](1.5), Exact()),
        (names["Drift"](0.3, 1.0), Exact()),
        (names["LaplaceWalk"](1.5), names["Midpoint"]()),  # exact on a Gaussian
    ]:
        verdict = diagnostics.stationarity(metropolis_hastings(law, proposal, rule), law, chains=50_000, generator=g)
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


def documented() -> Iterator[tuple[str, Any]]:
    for module in (
        scoremh,
        acceptance,
        annealing,
        balance_matching,
        datasets,
        diagnostics,
        entropy_curve,
        entropy_maps,
        estimator,
        evaluation,
        experiments,
        gaussian,
        gev_adjustment,
        gev_learned,
        gev_tails,
        learned_acceptances,
        metrics,
        mixture,
        networks,
        plots,
        report,
        score_matching,
        scores,
        step_size,
        table1,
        targets,
        taylor,
        taylor_vs_learned,
        training,
    ):
        for name, value in vars(module).items():
            ours = getattr(value, "__module__", "").startswith("scoremh")
            if ours and not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
                yield f"{value.__module__}.{name}", value


@pytest.mark.parametrize("name", sorted(dict(documented())))
def test_documented_arguments_are_those_of_the_signature(name: str) -> None:
    value = dict(documented())[name]
    doc = inspect.getdoc(value)
    assert doc, name
    if "Args:" not in doc:
        return
    section = doc.split("Args:\n")[1].split("\n\n")[0]
    listed = re.findall(r"^    (\w+): ", section, flags=re.MULTILINE)
    parameters = [p for p in inspect.signature(value).parameters if p != "self"]
    assert listed == [p for p in parameters if p in listed], "in the order of the signature"
    assert set(listed) == set(parameters)


def test_no_assert_checks_what_a_user_passes() -> None:
    """Asserts in the library narrow types for the checker; each stands on something `is not None`, or an isinstance."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                text = ast.unparse(node.test)
                assert text.endswith("is not None") or text.startswith("isinstance("), f"{path.name}: {text}"


def test_the_changelog_has_this_version() -> None:
    assert f"## {scoremh.__version__}" in (ROOT / "CHANGELOG.md").read_text()

"""The wheel: what it holds, what it asks for, and that the core works with its hard dependencies alone."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
HARD = {
    "arviz-base",
    "arviz-stats",
    "jaxtyping",
    "numpy",
    "rich",
    "safetensors",
    "scikit-learn",
    "scipy",
    "torch",
}


def names(requirements: Iterable[str]) -> set[str]:
    return {Requirement(text).name for text in requirements}


def test_the_hard_dependencies_are_these() -> None:
    assert names(PROJECT["dependencies"]) == HARD


def test_all_has_every_extra_and_dev_has_all() -> None:
    optional = set(EXTRAS) - {"all", "dev", "docs"}
    assert optional == {"cli", "report", "metrics", "flows", "parquet", "diffusers", "zarr", "cluster"}
    (everything,) = map(Requirement, EXTRAS["all"])
    assert (everything.name, everything.extras) == ("scoremh", optional)
    assert "scoremh[all,docs]" in EXTRAS["dev"]  # which `make demo` and `make test` install


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as an installer would, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    script = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return zipfile.ZipFile(folder / ran.stdout.split()[-1])


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    tree = {str(path.relative_to(source)) for path in (source / "scoremh").rglob("*") if path.is_file()}
    assert held == {name for name in tree if "__pycache__" not in name}
    assert {Path(name).suffix for name in held} <= {".py", ".typed", ".html", ".css", ".js"}  # no data
    assert not [name for name in held if re.search("experiments|studies|tests|mnist|ubyte", name)]
    assert sum(entry.file_size for entry in wheel.infolist()) < 1_500_000  # bytes, of code: 1.1 million now


@pytest.mark.slow
def test_the_wheel_asks_for_what_is_declared(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    head = Parser().parsestr(wheel.read(path).decode())
    required = [Requirement(text) for text in head.get_all("Requires-Dist", [])]
    assert {each.name for each in required if each.marker is None} == HARD
    assert set(head.get_all("Provides-Extra", [])) == set(EXTRAS)
    for extra in set(EXTRAS) - {"all", "dev"}:
        mine = {each.name for each in required if each.marker and each.marker.evaluate({"extra": extra})}
        assert mine == names(EXTRAS[extra])


def with_dependencies(requirements: Iterable[str]) -> set[str]:
    """Return the names of these distributions and of all that they need, as installed here."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            needs = metadata.requires(key[0]) or []
        except metadata.PackageNotFoundError:  # for another system
            continue
        found.add(key[0])
        for each in map(Requirement, needs):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                waiting.append(each)
    return found


def other_modules() -> list[str]:
    """Return every module that is installed here and comes with no hard dependency."""
    kept = with_dependencies(PROJECT["dependencies"]) | {"scoremh"}
    return [
        module
        for module, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & kept and module.isidentifier()
    ]


ALONE = """
import json, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def alone(script: str, blocked: list[str], folder: Path) -> Any:
    """Run a script in a process that cannot import these modules, and return the JSON that it prints."""
    program = f"BLOCKED = set({blocked!r})" + ALONE + textwrap.dedent(script)
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_what_is_blocked_below_is_what_the_extras_bring() -> None:
    blocked = other_modules()
    assert {"cyclopts", "matplotlib", "PIL", "plotly", "ot", "pyarrow", "zuko"} <= set(blocked)
    assert not {"torch", "numpy", "scipy", "sklearn", "arviz_base", "arviz_stats", "rich", "h5netcdf"} & set(blocked)


@pytest.mark.slow
def test_the_core_works_with_the_hard_dependencies_alone(tmp_path: Path) -> None:
    script = """
        import torch, scoremh
        from scoremh import datasets, diagnostics, metrics, targets

        g = torch.Generator().manual_seed(0)
        data = datasets.moons(200, generator=g)
        fit = scoremh.fit_score(data, recipe=scoremh.Recipe(steps=20), generator=g)
        kernel = scoremh.metropolis_hastings(fit, scoremh.MALA(0.01), scoremh.LineIntegral())
        chains = scoremh.sample(kernel, data[:8], draws=20, generator=g)
        chains.save("chains.nc")
        again = scoremh.Chains.load("chains.nc")
        summary = str(diagnostics.summary(again))
        normal = targets.Gaussian([0.0, 0.0])
        right = scoremh.metropolis_hastings(normal, scoremh.MALA(0.5), scoremh.Exact())
        p_value = diagnostics.stationarity(right, normal, chains=1000, generator=g).p_value
        model = scoremh.ScoreMH(score_steps=20, acceptance_steps=20, chain_steps=20, random_state=0).fit(data.numpy())
        drawn = model.sample(5)
        print(json.dumps({
            "same": torch.equal(again.draws, chains.draws),
            "r_hat": "r_hat" in summary,
            "p_value": p_value,
            "distance": metrics.energy_distance(data, data),
            "drawn": list(drawn.shape),
        }))
    """
    found = alone(script, other_modules(), tmp_path)
    assert found == {"same": True, "r_hat": True, "p_value": found["p_value"], "distance": 0, "drawn": [5, 2]}
    assert 1e-4 < found["p_value"] <= 1


NEEDS: dict[str, str] = {  # an extra, and something that needs it
    "cli": "from scoremh.cli.__main__ import main; main(['doctor'])",
    "metrics": "scoremh.metrics.w1(torch.zeros(3, 2), torch.ones(3, 2))",
    "parquet": "open('a.parquet', 'wb').write(b'PAR1'); scoremh.datasets.load('a.parquet')",
    "report": "from scoremh.report import html; html(None)",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what each says without its extra, all of one process."""
    script = f"""
        import contextlib, io, torch, scoremh
        said = {{}}
        for extra, call in {NEEDS!r}.items():
            try:
                with contextlib.redirect_stderr(io.StringIO()) as printed:
                    exec(call)
            except ImportError as error:
                said[extra] = str(error)
            except SystemExit as end:  # the command line prints its errors
                said[extra] = f"exit code {{end.code}}: {{printed.getvalue()}}"
        print(json.dumps(said))
    """
    said: dict[str, str] = alone(script, other_modules(), tmp_path_factory.mktemp("alone"))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("extra", NEEDS)
def test_a_missing_extra_is_named(extra: str, refusals: dict[str, str]) -> None:
    expected = rf"expected \w+, of the extra '{extra}', to be installed, got No module named .*\. "
    assert re.search(expected + re.escape(f"Run: pip install 'scoremh[{extra}]'"), refusals[extra]), refusals
    assert extra != "cli" or refusals[extra].startswith("exit code 2: scoremh: expected ")

"""What a release is made of: version, recipe, workflow, wheel and sdist."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import scoremh

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # where they differ from PyPI's
APART = {"all", "dev", "docs", "cli"}  # extras that are none of the user's, and the one that the recipe has


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_there_is_one_version() -> None:
    assert "version" in PROJECT["dynamic"]  # hatchling reads that of the package
    assert str(loaded("CITATION.cff")["version"]) == scoremh.__version__
    assert loaded("recipe/recipe.yaml")["context"]["version"] == scoremh.__version__


def test_the_citation_has_what_its_format_requires() -> None:
    citation = loaded("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    assert PROJECT["description"] in citation["title"]


def in_conda(requirements: Iterable[str]) -> set[str]:
    """Return requirements as conda names them, with what their own extras bring."""
    found: set[str] = set()
    for wanted in map(Requirement, requirements):
        found.add(f"{CONDA_NAMES.get(wanted.name, wanted.name)} {wanted.specifier}".strip())
        for extra in wanted.extras:
            brought = [Requirement(text) for text in metadata.requires(wanted.name) or []]
            found |= in_conda(
                str(each).split(";")[0] for each in brought if each.marker and each.marker.evaluate({"extra": extra})
            )
    return found


def test_the_conda_recipe_asks_for_what_is_declared() -> None:
    recipe = loaded("recipe/recipe.yaml")
    needs, extras = recipe["requirements"], PROJECT["optional-dependencies"]
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    python, *run = needs["run"]
    assert python == "python >=${{ python_min }}"
    assert set(run) == in_conda([*PROJECT["dependencies"], *extras["cli"]])
    others = {text for name in set(extras) - APART for text in in_conda(extras[name])}
    assert set(needs["run_constraints"]) == others - set(run)
    assert needs["host"] == ["python ${{ python_min }}.*", "hatchling", "pip"]
    assert len(set(run)) == len(run)


def test_the_conda_recipe_describes_the_package() -> None:
    recipe = loaded("recipe/recipe.yaml")
    assert recipe["package"]["name"] == PROJECT["name"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {call}" for name, call in PROJECT["scripts"].items()
    ]
    assert (ROOT / recipe["about"]["license_file"]).exists()


@pytest.fixture
def workflow() -> dict[str, Any]:
    jobs: dict[str, Any] = loaded(".github/workflows/release.yml")["jobs"]
    return jobs


def test_the_release_is_published_without_a_stored_token(workflow: dict[str, Any]) -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert not re.search(r"secrets\.|password|token:\s*\$", text)
    assert loaded(".github/workflows/release.yml")["permissions"] == {}
    assert workflow["build"]["permissions"] == {"contents": "read"}
    publish = workflow["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"contents": "read", "id-token": "write", "attestations": "write"}
    used = {step["uses"].split("@")[0]: step.get("with", {}) for step in publish["steps"]}
    assert used["pypa/gh-action-pypi-publish"] == {"attestations": True}
    assert used["actions/attest"] == {"subject-path": "dist/*"}


def test_the_workflow_pins_major_versions_and_runs_what_exists(workflow: dict[str, Any]) -> None:
    steps = [step for job in workflow.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(?:release/)?v\d+", name) for name in used), used
    versions = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert all((ROOT / "constraints" / f"python{version}.txt").exists() for version in versions)
    made = re.findall(r"^make (.+)$", "\n".join(step.get("run", "") for step in steps), re.MULTILINE)
    assert made == ["test test-studies docs"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(made[0].split()) <= set(targets)


@pytest.mark.parametrize(
    ("tag", "heading", "passes"),
    [
        ("v{}", "## {} (2030-01-01)", True),
        ("v{}", "## {} (unreleased)", False),
        ("v{}", "## of another version", False),
        ("v9{}", "## {} (2030-01-01)", False),
    ],
)
def test_a_tag_has_to_be_the_version(
    tag: str, heading: str, passes: bool, workflow: dict[str, Any], tmp_path: Path
) -> None:
    """The step of the workflow, run as it is."""
    (script,) = [step["run"] for step in workflow["build"]["steps"] if "the tag is the version" in step.get("name", "")]
    (tmp_path / "src" / "scoremh").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "scoremh" / "__init__.py", tmp_path / "src" / "scoremh")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading.format(scoremh.__version__)}\n")
    environment = {"GITHUB_REF_NAME": tag.format(scoremh.__version__), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=False)  # as GitHub runs it
    assert (ran.returncode == 0) == passes


# The wheel and the sdist: their contents and dependencies, and that the core works with its hard dependencies alone.


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


def built(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """Build a wheel or an sdist as an installer would, without a network, and return its path."""
    script = f"from hatchling.build import build_{kind}; print(build_{kind}({str(folder)!r}))"
    ran = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True, text=True, check=True)
    return folder / ran.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("dist")))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built("sdist", folder)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (found,) = (folder / "unpacked").iterdir()
    return found


def package() -> set[str]:
    """Return the files of the package, from `src`."""
    source = ROOT / "src"
    tree = {str(path.relative_to(source)) for path in (source / "scoremh").rglob("*") if path.is_file()}
    return {name for name in tree if "__pycache__" not in name}


def held(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert held(wheel) == package()
    assert {Path(name).suffix for name in held(wheel)} <= {".py", ".typed", ".html", ".css", ".js"}  # no data
    assert not [name for name in held(wheel) if re.search("experiments|studies|tests|mnist|ubyte", name)]
    assert sum(entry.file_size for entry in wheel.infolist()) < 1_500_000  # bytes, of code: 1.1 million now
    about = {Path(name).relative_to(Path(name).parts[0]).as_posix() for name in set(wheel.namelist()) - held(wheel)}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


@pytest.mark.slow
def test_the_sdist_holds_what_a_wheel_is_built_from(unpacked: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    documents = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md"}
    written = {".gitignore", "PKG-INFO", "pyproject.toml"}  # by hatchling, whatever it is told
    assert names == {f"src/{name}" for name in package()} | documents | written
    again = zipfile.ZipFile(built("wheel", tmp_path, unpacked))
    assert {name: again.read(name) for name in held(again)} == {name: wheel.read(name) for name in held(wheel)}


def description(wheel: zipfile.ZipFile) -> bytes:
    """Return what an index is told of the wheel."""
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return wheel.read(path)


@pytest.mark.slow
def test_twine_finds_nothing_to_say(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """As the workflow of a release checks both, here and before they are uploaded; a README of no kind is noticed."""
    check = [sys.executable, "-m", "twine", "check", "--strict"]
    ran = subprocess.run([*check, str(wheel.filename), str(built("sdist", tmp_path))], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("PASSED") == 2
    poor = tmp_path / Path(str(wheel.filename)).name
    with zipfile.ZipFile(poor, "w") as archive:
        for name in wheel.namelist():
            raw = wheel.read(name)
            archive.writestr(name, raw.split(b"Description-Content-Type")[0] if name.endswith("/METADATA") else raw)
    ran = subprocess.run([*check, str(poor)], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "long_description" in ran.stdout


@pytest.mark.slow
def test_an_index_takes_the_description(wheel: zipfile.ZipFile, unpacked: Path) -> None:
    """Every field is valid by the standard of core metadata, and the long description is the README as Markdown."""
    for raw in (description(wheel), (unpacked / "PKG-INFO").read_bytes()):
        head = Metadata.from_email(raw)
        assert (head.name, str(head.version)) == (PROJECT["name"], scoremh.__version__)
        assert head.summary == PROJECT["description"]
        assert head.license_expression == PROJECT["license"]
        assert str(head.requires_python) == PROJECT["requires-python"]
        assert head.description_content_type == "text/markdown"
        assert head.description is not None
        assert head.description.strip() == (ROOT / "README.md").read_text().strip()


@pytest.mark.slow
def test_the_wheel_asks_for_what_is_declared(wheel: zipfile.ZipFile) -> None:
    head = Parser().parsestr(description(wheel).decode())
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


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment that sees the libraries of this one, and return its Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel.filename)], check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "libraries.pth").write_text("\n".join(places))  # whose own .pth files are not read
    return python


def alone(script: str, blocked: list[str], python: Path, folder: Path) -> Any:
    """Run a script in a process that cannot import these modules, and return the JSON that it prints."""
    program = f"BLOCKED = set({blocked!r})" + ALONE + textwrap.dedent(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([python, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_what_is_blocked_below_is_what_the_extras_bring() -> None:
    blocked = other_modules()
    assert {"cyclopts", "matplotlib", "PIL", "plotly", "ot", "pyarrow", "zuko"} <= set(blocked)
    assert not {"torch", "numpy", "scipy", "sklearn", "arviz_base", "arviz_stats", "rich", "h5netcdf"} & set(blocked)


@pytest.mark.slow
def test_the_core_works_with_the_hard_dependencies_alone(installed: Path, tmp_path: Path) -> None:
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
            "file": scoremh.__file__,
        }))
    """
    found = alone(script, other_modules(), installed, tmp_path)
    assert Path(found.pop("file")).is_relative_to(installed.parent.parent)
    assert 1e-4 < found.pop("p_value") <= 1
    assert found == {"same": True, "r_hat": True, "distance": 0, "drawn": [5, 2]}


@pytest.mark.slow
def test_the_command_is_installed(installed: Path) -> None:
    ran = subprocess.run([installed.parent / "scoremh", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith(scoremh.__version__)


NEEDS: dict[str, str] = {  # an extra, and something that needs it
    "cli": "from scoremh.cli.__main__ import main; main(['doctor'])",
    "metrics": "scoremh.metrics.w1(torch.zeros(3, 2), torch.ones(3, 2))",
    "parquet": "open('a.parquet', 'wb').write(b'PAR1'); scoremh.datasets.load('a.parquet')",
    "report": "from scoremh.report import html; html(None)",
}


@pytest.fixture(scope="module")
def refusals(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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
    said: dict[str, str] = alone(script, other_modules(), installed, tmp_path_factory.mktemp("alone"))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("extra", NEEDS)
def test_a_missing_extra_is_named(extra: str, refusals: dict[str, str]) -> None:
    expected = rf"expected \w+, of the extra '{extra}', to be installed, got No module named .*\. "
    assert re.search(expected + re.escape(f"Run: pip install 'scoremh[{extra}]'"), refusals[extra]), refusals
    assert extra != "cli" or refusals[extra].startswith("exit code 2: scoremh: expected ")

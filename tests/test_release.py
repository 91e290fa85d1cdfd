"""What a release is made of: one version, a conda recipe that asks for what pyproject.toml does, a workflow."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

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
    made = re.findall(r"^make (\w+)", "\n".join(step.get("run", "") for step in steps), re.MULTILINE)
    assert made == ["test"]


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

"""The package as a whole: what it imports, how it is built, and whether its docstrings match its signatures."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("src", "studies") for path in (ROOT / folder).rglob("*.py"))
PACKAGES = "scoremh", "studies"
NOT_LOADED = (  # by `import scoremh`
    "PIL",
    "arviz_base",
    "arviz_stats",
    "cyclopts",
    "dask",
    "diffusers",
    "distributed",
    "geomloss",
    "jinja2",
    "matplotlib",
    "ot",
    "pandas",
    "plotly",
    "pyarrow",
    "rich",
    "scipy",
    "sklearn",
    "xarray",
    "zuko",
)
EVERY_NAME = "[getattr(scoremh, name) for name in scoremh.__all__ if name != 'ScoreMH']"


def printed(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_importing_loads_no_plotting_transport_or_distributed_library() -> None:
    script = f"import sys, scoremh; {EVERY_NAME}; print([name for name in {NOT_LOADED} if name in sys.modules])"
    assert printed(script) == "[]"


@pytest.mark.slow
def test_importing_loads_four_libraries() -> None:
    """Torch, and three small ones."""
    script = (
        f"import sys, torch; before = set(sys.modules); import scoremh; {EVERY_NAME}; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    assert set(printed(script).split()) <= {"jaxtyping", "numpy", "safetensors", "scoremh"}


def test_importing_loads_nothing_until_a_name_is_used() -> None:
    listed = "sorted(dir(scoremh)) == sorted([*scoremh.__all__, '__version__'])"
    script = f"import sys, scoremh; print('torch' in sys.modules, {listed})"
    assert printed(script) == "False True"


@pytest.mark.slow
def test_importing_changes_no_setting_of_torch() -> None:
    script = (
        "import torch; state = lambda: (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), "
        "torch.random.get_rng_state().tolist()); before = state(); import scoremh; print(before == state())"
    )
    assert printed(script) == "True"


def test_a_shared_module_has_at_least_two_clients() -> None:
    """What one module uses stands in that module."""
    source = ROOT / "src" / "scoremh"
    texts = {path: path.read_text() for path in source.rglob("*.py")}
    for path in (source / "_shared").glob("[a-z]*.py"):
        imported = re.compile(
            rf"from scoremh\._shared\.{path.stem} import|from scoremh\._shared import [^\n]*\b{path.stem}\b"
        )
        clients = [other for other, text in texts.items() if other != path and imported.search(text)]
        assert len(clients) >= 2, path.name


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_the_line_of_an_argument_is_understood_alone() -> None:
    found = {
        str(path.relative_to(ROOT)): re.findall(r"^ +(\w+: Of\b.*)", "\n".join(docstrings(path)), re.MULTILINE)
        for path in SOURCES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def public_modules() -> Iterator[ModuleType]:
    """Yield every module whose name has no part that begins with an underscore."""
    for package in map(importlib.import_module, PACKAGES):
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part.startswith("_") for part in found.name.split(".")):
                importlib.import_module(found.name)
                yield sys.modules[found.name]  # a function may have the name of its module


def documented() -> Iterator[tuple[str, Any]]:
    for module in public_modules():
        for name, value in vars(module).items():
            ours = getattr(value, "__module__", "").split(".")[0] in PACKAGES
            if ours and not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
                yield f"{value.__module__}.{name}", value


def test_documented_arguments_match_those_of_the_signature() -> None:
    for name, value in dict(documented()).items():
        doc = inspect.getdoc(value)
        assert doc, name
        if "Args:" not in doc:
            continue
        section = doc.split("Args:\n")[1].split("\n\n")[0]
        listed = re.findall(r"^    (\w+): ", section, flags=re.MULTILINE)
        assert listed == [p for p in inspect.signature(value).parameters if p != "self"], name


def test_no_assert_checks_what_a_user_passes() -> None:
    """Asserts in the library narrow types for the checker; each stands on something `is not None`, or an isinstance."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                text = ast.unparse(node.test)
                assert text.endswith("is not None") or text.startswith("isinstance("), f"{path.name}: {text}"

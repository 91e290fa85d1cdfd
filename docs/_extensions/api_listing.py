"""Write `API.md`: every public name with its signature and the first sentence of its docstring.

Run `python docs/_extensions/api_listing.py` after a change; a test compares the file with the code.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent.parent
PAGES = ROOT / "docs" / "api"
INTRODUCTION = """# API

Every public name with the first sentence of its docstring; the site (`make docs`) has all of it. Written by
`python docs/_extensions/api_listing.py`; a test compares it with the code.

## All rules, proposals and kernels

"""


def listing() -> str:
    """Return the file."""
    order = re.findall(r"\[[^\]]+\]\((\w+)\.md\)", (PAGES / "index.md").read_text())
    return "\n".join([INTRODUCTION + overview(), *(section(PAGES / f"{name}.md") for name in dict.fromkeys(order))])


def overview() -> str:
    """Return the table of rules, proposals and kernels, with links from the root of the repository."""
    found = re.search(r"^\| name \|.*\n(?:\|.*\n)+", (PAGES / "index.md").read_text(), re.MULTILINE)
    assert found is not None
    return re.sub(r"\{py:\w+\}`~([\w.]+)`", r"`\1`", found[0]).replace("(../", "(docs/")


def section(page: Path) -> str:
    """Return the section of a page: its title, and the names of its modules."""
    title, *_ = page.read_text().splitlines()
    modules = re.findall(r"automodule:: (\S+)", page.read_text())
    return "\n\n".join([f"#{title}", *(of_module(importlib.import_module(name)) for name in modules)]) + "\n"


def of_module(module: ModuleType) -> str:
    """Return the public names of a module, as a list."""
    lines = [f"`{module.__name__}`"]
    for name in sorted(public(module), key=str.lower):
        found = getattr(module, name)
        lines.append(f"- `{name}{signature(found)}`: {sentence(found)}")
        if inspect.isclass(found):
            lines += [f"  - `.{line}" for line in members(found)]
    return "\n".join([lines[0], "", *lines[1:]])


def public(module: ModuleType) -> list[str]:
    """Return the public names of a module: those in `__all__`, or the classes and functions that it defines."""
    names = getattr(module, "__all__", None) or [
        name for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__
    ]
    return [name for name in names if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]


def members(found: type) -> list[str]:
    """Return the public methods and properties that a class defines itself, with their sentences."""
    lines = []
    for name, one in vars(found).items():
        inner = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        inner = inner.fget if isinstance(inner, property) else inner
        if not name.startswith("_") and inspect.isfunction(inner) and inner.__doc__:
            lines.append(f"{name}{'' if isinstance(one, property) else signature(inner)}`: {sentence(inner)}")
    return lines


def signature(found: object) -> str:
    """Return the names of the parameters, with `=` after those that have a default."""
    if not callable(found) or (inspect.isclass(found) and issubclass(found, BaseException)):
        return ""
    try:
        given = [one for one in inspect.signature(found).parameters.values() if one.name not in ("self", "cls")]
    except (TypeError, ValueError):
        return ""
    names = [one.name + "=" * (one.default is not one.empty) for one in given if not one.name.startswith("_")]
    return f"({', '.join(names)})"


def sentence(found: object) -> str:
    """Return the first sentence of a docstring; nothing for a constant, whose docstring is that of its type."""
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return "a constant or a type."
    return (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    (ROOT / "API.md").write_text(listing())

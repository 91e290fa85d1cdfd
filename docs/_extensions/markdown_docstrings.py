"""A Sphinx extension that reads the Markdown of our docstrings: code in backticks, tables, indented equations."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sphinx.application import Sphinx

SECTION = re.compile(r"^\s*(Args|Returns|Raises|Example|Yields):$")
CODE = re.compile(r"(`[^`]*`)")


def inline(text: str) -> str:
    """Return text with its code as reST's, and with no other markup."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"([|*])", r"\\\1", part)) for part in parts[::2]]
    return "".join(f"`{part}`" if i % 2 else part for i, part in enumerate(parts))


def table(rows: Iterable[str]) -> Iterator[str]:
    """Yield a table of Markdown as a list-table."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for row in rows:
        cells = [cell.strip().replace(r"\|", "|") for cell in row.strip()[1:-1].split(" | ")]
        if set(row) - set("|-: "):
            yield from (f"   {'*' if i == 0 else ' '} - {inline(cell)}" for i, cell in enumerate(cells))
    yield ""


def blocks(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of a docstring in blocks of one kind: "text", "table", "literal" or "code" (of an example)."""
    kind, block, section, blank = "text", [], False, True
    for line in lines:
        section = section or bool(SECTION.match(line))
        if line.lstrip().startswith((">>>", "...")):
            new = "code"
        elif line.startswith("|"):
            new = "table"
        elif line.startswith("    ") and not section and (kind == "literal" or blank):
            new = "literal"
        else:
            new = kind if kind == "literal" and not line.strip() else "text"
        if new != kind and block:
            yield kind, block
            block = []
        kind, blank = new, not line.strip()
        block.append(line)
    yield kind, block


def as_rest(app: Sphinx, what: str, name: str, item: object, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring as reST, before napoleon reads its sections."""
    written: list[str] = []
    for kind, block in blocks(lines):
        if kind == "text":
            written += map(inline, block)
        elif kind == "table":
            written += table(block)
        else:
            written += ["::", "", *block, ""] if kind == "literal" else block
    lines[:] = written


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to autodoc, before napoleon does."""
    app.connect("autodoc-process-docstring", as_rest, priority=400)
    return {"parallel_read_safe": True}

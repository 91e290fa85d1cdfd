"""Pages from templates: prose is in `templates/`, numbers and verdicts are filled in."""

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from studies.framework import tables
from studies.framework.study import Records, Study

WIDTH = 120
WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
TEMPLATES = Path(__file__).parent.parent / "templates"
FILTERS = ("mean", "over_seeds", "shown_seeds", "version")  # of `tables`


def listed(values: Sequence[Any], spec: str = "", none: str = "none") -> str:
    """Return values separated by commas."""
    return ", ".join(format(value, spec) for value in values) or none


ENVIRONMENT = Environment(  # a name that is missing is an error, and blocks leave no empty lines
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # Markdown
)
ENVIRONMENT.filters |= {"fmt": format, "listed": listed}
ENVIRONMENT.filters |= {name: getattr(tables, name) for name in FILTERS}


def render(study: Study, records: Records, template: str | None = None) -> str:
    """Return the section of a study as Markdown, or another of its templates."""
    found = ENVIRONMENT.get_template(template or f"{study.name}.md")
    names = {"records": records, "settings": records.settings, "claims": study.verdicts(records)}
    return reflowed(found.render(dict(study.names) | names))


def reflowed(text: str) -> str:
    r"""Return Markdown with paragraphs and items of lists wrapped anew; tables, headings and code stay as they are.

    >>> print(reflowed("A value of\n0.1 - or less.\n\n- one\n  item\n- two"))
    A value of 0.1 - or less.
    <BLANKLINE>
    - one item
    - two
    >>> print(reflowed("```python\nimport torch\n\ntorch.ones(1)\n```\nNext."))
    ```python
    import torch
    <BLANKLINE>
    torch.ones(1)
    ```
    <BLANKLINE>
    Next.
    """
    parts = re.split(r"^(```.*?^```)$", text, flags=re.MULTILINE | re.DOTALL)  # code keeps its empty lines
    pieces = [[part] if part.startswith("```") else re.split(r"\n{2,}", part) for part in parts]
    blocks = [block.strip("\n") for piece in pieces for block in piece if block.strip()]
    return "\n\n".join(block if re.match(r"\||#|!|`{3}|<", block) else _wrapped(block) for block in blocks)


def _wrapped(block: str) -> str:
    items = re.split(r"\n(?=\s*(?:-|\d+\.) )", block)
    whole = (re.match(r"\s*(?:(?:-|\d+\.) )?", item) for item in items)
    marks = [mark.group() if mark else "" for mark in whole]
    texts = [
        " ".join(item[len(mark) :].split()).replace(" - ", "\0- ") for item, mark in zip(items, marks, strict=True)
    ]
    lines = [
        textwrap.fill(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), **WRAPPING)
        for text, mark in zip(texts, marks, strict=True)
    ]
    return "\n".join(lines).replace("\0", " ")  # no line begins with a minus sign, which would open a list


def fill(page: str, name: str, section: str) -> str:
    """Put a section into its place on a page, `<!-- name -->` to `<!-- end -->`; at the end where it has none."""
    mark, end = f"<!-- {name} -->\n", "<!-- end -->"
    if mark not in page:
        page += f"{page and chr(10)}{mark}{end}\n"
    before, _, rest = page.partition(mark)
    return f"{before}{mark}{section}\n{end}{rest.partition(end)[2]}"


def write(study: Study, records: Records, docs: Path) -> None:
    """Write the section of a study into its page, and its excerpts into other pages that have a place for them."""
    section, path = render(study, records), docs / study.page
    page = path.read_text() if path.exists() else ""
    whole = study.page == f"{study.name}.md"
    path.write_text(f"{section}\n" if whole else fill(page, study.name, section))
    for name, template in study.excerpts.items():
        other = docs / name
        if other.exists() and f"<!-- {study.name} -->" in (text := other.read_text()):
            other.write_text(fill(text, study.name, render(study, records, template)))


def rewrite(study: Study, docs: Path) -> None:
    """Write the page of a study from `results/NAME.json`; compute and draw nothing."""
    write(study, Records.from_json(json.loads((docs / "results" / f"{study.name}.json").read_text())), docs)

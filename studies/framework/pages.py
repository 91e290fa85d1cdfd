"""Pages from templates: prose is in `templates/`, numbers and verdicts are filled in."""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.markdown import Markdown

from studies.framework import tables
from studies.framework.study import Records, Study

TEMPLATES = Path(__file__).parent.parent / "templates"


def listed(values: Sequence[Any], spec: str = "", none: str = "none") -> str:
    """Return values separated by commas."""
    return ", ".join(format(value, spec) for value in values) or none


def environment() -> Environment:
    """Return the environment of all templates: a name that is missing is an error, and blocks leave no empty lines."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    found.filters |= {"fmt": format, "listed": listed, "json": partial(json.dumps, indent=1)}
    found.filters |= {
        name: getattr(tables, name) for name in ("markdown", "mean", "number", "over_seeds", "shown_seeds")
    }
    return found


def render(study: Study, records: Records, template: str | None = None) -> str:
    """Return the section of a study as Markdown, or another of its templates."""
    found = environment().get_template(template or f"{study.name}.md")
    names = {"records": records, "settings": records.settings, "claims": study.verdicts(records)}
    text = found.render(dict(study.names) | names)
    text, missing = re.sub(r"\n{3,}", "\n\n", text).strip(), records.settings.get("missing_seeds")
    return text + (f"\n\n**Not computed yet**: seeds {listed(missing)}." if missing else "")


def fill(page: str, name: str, section: str) -> str:
    """Put a section into its place on a page, `<!-- name -->` to `<!-- end -->`; at the end where it has none."""
    mark, end = f"<!-- {name} -->\n", "<!-- end -->"
    if mark not in page:
        page += f"{page and chr(10)}{mark}{end}\n"
    before, _, rest = page.partition(mark)
    return f"{before}{mark}{section}\n{end}{rest.partition(end)[2]}"


def write(study: Study, records: Records, docs: Path) -> None:
    """Write the section of a study into its page and show it."""
    section, path = render(study, records), docs / study.page
    page = path.read_text() if path.exists() else ""
    whole = study.page == f"{study.name}.md"
    path.write_text(f"{section}\n" if whole else fill(page, study.name, section))
    for name, template in study.excerpts.items():
        other = docs / name
        if other.exists() and f"<!-- {study.name} -->" in (text := other.read_text()):
            other.write_text(fill(text, study.name, render(study, records, template)))
    Console().print(Markdown(section))

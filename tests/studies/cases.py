"""What the tests of studies share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from studies.framework import Records, Study, pages, runner
from studies.framework.study import as_json

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def kept(name: str) -> Records:
    """Return the kept records of a study."""
    return Records.from_json(json.loads((DOCS / "results" / f"{name}.json").read_text()))


def made_up(config: Any, **kinds: list[dict[str, Any]]) -> Records:
    """Return records with the settings of a config."""
    return Records(as_json(config) | {"versions": {"scoremh": "0"}}, kinds)


def said(study: Study, records: Records) -> str:
    """Return the section of a study, without line breaks."""
    return " ".join(pages.render(study, records).split())


def run_small(study: Study, config: Any, out: Path) -> tuple[Records, str]:
    """Run a study from end to end; return its results and its page, without line breaks."""
    docs = out / "docs"
    runner.run(replace(study, config=config), out, docs)
    found = json.loads((docs / "results" / f"{study.name}.json").read_text())
    return Records.from_json(found), " ".join((docs / study.page).read_text().split())


def is_picture(path: Path) -> bool:
    """Return whether a file is a PNG with something on it."""
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and len(content) > 10_000

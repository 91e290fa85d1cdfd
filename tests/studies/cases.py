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
    """Return records with the settings of a preset."""
    return Records(as_json(config), kinds)


def said(study: Study, records: Records) -> str:
    """Return the section of a study, without line breaks."""
    return " ".join(pages.render(study, records).split())


def run_small(study: Study, config: Any, out: Path) -> tuple[Records, str]:
    """Run a study from end to end; return its results and its page, without line breaks."""
    docs = out / "docs"
    runner.run(replace(study, presets={"quick": config}), "quick", out, docs)
    found = json.loads((docs / "results" / f"{study.name}.json").read_text())
    page = (docs / study.page).read_text()
    assert pages.render(study, Records.from_json(found)) in page  # the page says what the results say
    return Records.from_json(found), " ".join(page.split())


def is_picture(path: Path) -> bool:
    """Return whether a file is a PNG with something on it."""
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and len(content) > 10_000

"""The documentation site: it is built without a warning, and its pages make no requests.

Notebooks are not executed here: `make docs` executes those that changed, and fails where one does.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
GUIDES = "start", "choosing", "learning", "noise-levels", "diffusion-models", "judging", "scaling", "developers"
PAGES = "index", *GUIDES, "correctness", "acceptance", "api/index", "gallery/two_modes"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, with notebooks as they are written."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    command += ["-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ran = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), "docs", str(folder / "html")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return folder / "html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_open_offline_without_an_error(site: Path, browser: Any, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()
    assert not said
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_search_finds_a_rule(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=LineIntegral")
    page.wait_for_selector("#search-results li", timeout=20_000)
    assert "cceptance" in page.inner_text("#search-results")
    page.close()


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    import scoremh

    listed = (site / "genindex.html").read_text()
    modules = {"annealing", "datasets", "diagnostics", "diffusion", "metrics", "networks", "targets"}
    assert [name for name in scoremh.__all__ if name not in modules and name not in listed] == []

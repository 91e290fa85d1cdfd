"""Progress bars: numbered in long commands, and drawn in notebooks without more than IPython."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scoremh._shared.progress import numbered_steps, progress_bar


def test_a_notebook_shows_a_bar_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = ModuleType("IPython.display")
    monkeypatch.setattr(display, "HTML", str, raising=False)

    def first(page: str, *, display_id: bool) -> Any:
        assert display_id
        shown.append(page)
        return handle

    monkeypatch.setattr(display, "display", first, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with numbered_steps(2), progress_bar(10, "training <b>", unit="steps", show=True) as tick:
        for _ in range(10):
            tick(1, "loss 0.1")
    assert "step 1 of 2: training &lt;b&gt;" in shown[0]
    assert '<progress value="0" max="10"' in shown[0]
    assert '<progress value="10" max="10"' in shown[-1]
    assert "100 %" in shown[-1]
    assert "loss 0.1" in shown[-1]
    assert len(shown) <= 4  # the first and the last, and few between


def test_bars_are_numbered_and_more_than_announced_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    with numbered_steps(1):
        for label in ("one", "two"):
            with progress_bar(1, label, unit="steps", show=True) as tick:
                tick(1)
        with progress_bar(1, "hidden", unit="steps", show=False) as tick:
            tick(1)
    found = capfd.readouterr().err
    assert "step 1 of 1: one" in found
    assert "two" in found
    assert "of 1: two" not in found
    assert "hidden" not in found

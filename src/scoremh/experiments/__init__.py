"""One module per table or figure of the paper, each with presets and a `run`; `scoremh reproduce` finds them here."""

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable


@runtime_checkable
class Experiment(Protocol):
    """What such a module has; its docstring's first line says what it shows."""

    PRESETS: Mapping[str, Any]

    def run(self, preset: str, out: Path, docs: Path | None, *, workers: int | None, as_is: bool) -> None:
        """Compute what is missing, and write the page and the pictures.

        Args:
            preset: A name in `PRESETS`.
            out: Folder for what is computed on the way; a folder of the experiment's own in it.
            docs: Folder for what is to be looked at; beside the rest if None.
            workers: Parts at the same time; as many as there are cores if None.
            as_is: Compute nothing.
        """


def found() -> dict[str, Experiment]:
    """Return the experiments by name, a module's with dashes for underscores."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name.replace("_", "-"): cast(Experiment, importlib.import_module(f"{__name__}.{name}")) for name in names}

"""Find the studies: every `Study` in a module of this package."""

import importlib
import pkgutil

import studies
from scoremh._shared import checks
from studies.framework.study import Study


def all_studies() -> dict[str, Study]:
    """Return the studies by name."""
    names = [module.name for module in pkgutil.iter_modules(studies.__path__) if not module.name.startswith("_")]
    modules = [importlib.import_module(f"studies.{name}") for name in names]
    found = {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Study)}
    return dict(sorted(found.items()))


def chosen(name: str, preset: str | None) -> tuple[Study, str]:
    """Return a study by name, and the name of its preset; the first one if None."""
    found = all_studies()
    if name not in found:
        raise ValueError(checks.message(f"a study, one of {', '.join(found)}", repr(name), "See --list."))
    presets = list(found[name].presets)
    if preset is not None and preset not in presets:
        expected = f"a preset of {name}, one of {', '.join(presets)}"
        raise ValueError(checks.message(expected, repr(preset), "See --list."))
    return found[name], preset or presets[0]

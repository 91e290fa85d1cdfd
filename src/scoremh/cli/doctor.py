"""`scoremh doctor`: what is installed, and what is missing."""

import os
import platform
import shutil
from importlib import metadata
from typing import Any, NamedTuple

from scoremh import __version__
from scoremh.cli.output import Output

REQUIRED = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "jaxtyping", "arviz-base", "arviz-stats", "rich")


class Extra(NamedTuple):
    """An extra of the package.

    Args:
        purpose: What it is for.
        packages: Packages that it installs.
    """

    purpose: str
    packages: tuple[str, ...]


EXTRAS = {
    "cli": Extra("the command line, data frames", ("cyclopts", "pandas")),
    "report": Extra("reports and pictures", ("jinja2", "matplotlib", "pillow", "plotly")),
    "metrics": Extra("exact Wasserstein distances, `scoremh evaluate`", ("pot",)),
    "flows": Extra("the normalizing flow in the study of Table 1", ("zuko",)),
    "parquet": Extra("parquet files", ("pandas", "pyarrow")),
    "diffusers": Extra("models of the library diffusers", ("diffusers",)),
    "cluster": Extra("chains in other processes and on a dask cluster", ("cloudpickle", "dask", "distributed")),
    "zarr": Extra("reading a stored run with xarray", ("zarr",)),
    "docs": Extra(
        "building the pages of the documentation",
        ("furo", "myst-nb", "sphinx", "sphinx-copybutton", "sphinx-mathjax-offline"),
    ),
}


def doctor(*, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Show versions, threads, devices, and which extras are installed.

    Args:
        output: Verbosity and format of the output.
    """
    import torch

    versions = {name: _version(name) for name in REQUIRED} | {"torch": str(torch.__version__)}  # with its build
    found: dict[str, Any] = {
        "scoremh": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        + ["mps"] * torch.backends.mps.is_available(),
        "extras": {name: _extra_status(extra) for name, extra in EXTRAS.items()},
        "browser": shutil.which("chromium") or shutil.which("google-chrome"),
    }
    lines = [
        f"scoremh {found['scoremh']}, Python {found['python']}, {found['system']}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"{found['cores']} cores, torch uses {found['threads']} threads; devices: {', '.join(found['devices'])}",
        "extras:",
        *(_extra_line(name, status) for name, status in found["extras"].items()),
        f"browser for the tests of the report: {found['browser'] or 'not found'}",
    ]
    output.result(found, "\n".join(lines))


def _extra_status(extra: Extra) -> dict[str, Any]:
    """Return what an extra is for, whether it is installed, and the versions of its packages."""
    packages = {name: _version(name) for name in extra.packages}
    return {"purpose": extra.purpose, "installed": "missing" not in packages.values(), "packages": packages}


def _extra_line(name: str, status: dict[str, Any]) -> str:
    packages = ", ".join(f"{package} {version}" for package, version in status["packages"].items())
    fix = "" if status["installed"] else f". Install it: pip install 'scoremh[{name}]'"
    return f"  {name:8} {'installed' if status['installed'] else 'missing  '}  {status['purpose']} ({packages}){fix}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"

"""`scoremh doctor`: what is installed, and what is missing."""

import os
import platform
import shutil
from importlib import metadata, util
from typing import Any

import torch

from scoremh import __version__
from scoremh.cli.output import Output

NEEDED = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "arviz-base", "pot", "matplotlib", "plotly")
OPTIONAL = {  # a module, and what it is for
    "zuko": "the normalizing flow in `scoremh reproduce table1`: pip install 'scoremh[flows]'",
    "pyarrow": "parquet files: pip install 'scoremh[parquet]'",
}


def doctor(*, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Say which versions, threads, devices and optional parts there are.

    Args:
        output: How to speak.
    """
    found: dict[str, Any] = {
        "scoremh": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: _version(name) for name in NEEDED} | {"torch": str(torch.__version__)},  # with its build
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        + ["mps"] * torch.backends.mps.is_available(),
        "optional": {name: util.find_spec(name) is not None for name in OPTIONAL},
        "browser": shutil.which("chromium") or shutil.which("google-chrome"),
    }
    lines = [f"scoremh {found['scoremh']}, Python {found['python']}, {found['system']}"]
    lines += [", ".join(f"{name} {version}" for name, version in found["versions"].items())]
    lines += [f"{found['cores']} cores, torch uses {found['threads']} threads; devices: {', '.join(found['devices'])}"]
    for name, there in found["optional"].items():
        lines.append(f"{name}: {'there' if there else 'missing'}, for {OPTIONAL[name]}")
    lines.append(f"a browser for the tests of the report: {found['browser'] or 'none found'}")
    output.tell(found, "\n".join(lines))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"

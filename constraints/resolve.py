"""Write the constraints file of the Python that runs this: every direct and indirect dependency, pinned.

torch stays at one exact version: unpinned, its newest build brings gigabytes of CUDA packages.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TORCH = "torch==2.13.0"

root = Path(__file__).resolve().parent.parent
path = root / "constraints" / f"python{sys.version_info.major}.{sys.version_info.minor}.txt"
with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    wanted = [f"{root}[dev]", "hatchling", "editables", TORCH]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report, *wanted],
        check=True,
    )
    found = json.loads(report.read_text())["install"]
pins = sorted(
    f"{item['metadata']['name'].lower()}=={item['metadata']['version'].split('+')[0]}"
    for item in found
    if item["metadata"]["name"] != "scoremh"
)
path.write_text("\n".join(pins) + "\n")
print(f"{path.name}: {len(pins)} packages")

"""Faults that are tried by tests: which, how often, and what happened."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree  # of pytest's own making

ROOT = Path(__file__).parents[2]
FAULTS = {
    "a full disk, for every writer and command": "tests/test_faults.py",
    "run folders with links out of them, writes that are killed, Ctrl-C, two writers": "tests/test_cli.py",
    "bombs, false headers and malformed tables": "tests/test_datasets.py",
    "scores with NaN, inf, another shape or dtype, or an error, in every kernel": "tests/test_kernel.py",
    "workers that are killed or fail, in every pool": "tests/test_pools.py",
}


class Outcome(NamedTuple):
    """What came of some tests."""

    passed: int
    skipped: int
    failed: int


def outcome(file: str) -> Outcome:
    """Run the tests of a file."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, file], cwd=ROOT, stdout=sys.stderr, check=False)
        suite = next(ElementTree.parse(report).iter("testsuite"))
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Outcome(tests - skipped - failed, skipped, failed)

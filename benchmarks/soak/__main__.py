"""`make soak`: faults, damage, noise and kills; the record is docs/reliability.md.

python -m benchmarks.soak --minutes 20 --write docs/reliability.md

A part that is done is kept until the page is written: the same command resumes a run.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.soak import damage, faults, fuzz, kills, steady
from scoremh._shared.files import replacing

MEMORY_RUNS = ((200_000, 100), (100, 1_000_000))
MAX_MEMORY_MB, MAX_GROWTH = 300.0, 0.02  # of a run: above the empty process, and over its second half
MAX_LOADER_GB = 0.5  # by which files of noise may raise the highest memory of a process
DONE = Path("out") / "soak"  # parts that are done


class Part(NamedTuple):
    """A part of the record.

    Args:
        title: Its heading.
        text: What was tried, how often, and what happened.
        failures: Number of results that break the promise.
    """

    title: str
    text: str
    failures: int


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    lines = [list(map(str, head))]
    lines += [["---"] * len(lines[0]), *(list(map(shown, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: object) -> str:
    """Return the text of a cell of a table."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_total(rows: list[list[Any]]) -> list[list[Any]]:
    """Return the rows of a table, and their sums."""
    return [*rows, ["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])]]


def faulted() -> Part:
    """Run the tests of faults, and return what came of it."""
    rows: list[list[Any]] = []
    for fault, file in faults.FAULTS.items():
        found = faults.outcome(file)
        rows.append([fault, sum(found), *found])
    rows = with_total(rows)
    text = table(("fault", "tests", "as promised", "could not be tried here", "not as promised"), rows)
    return Part("Other faults", text, rows[-1][-1] + sum(row[1] == 0 for row in rows))


def damages(trials: int) -> Part:
    """Damage files, and return what came of it."""
    rows: list[list[Any]] = []
    for name in damage.CASES:
        with TemporaryDirectory() as folder:
            found = damage.campaign(name, trials, Path(folder))
        outcomes = Counter[str]()
        for (_, outcome), times in found.items():
            outcomes[outcome] += times
        silent = sum(outcomes.values()) - outcomes["refused by name"] - outcomes["the same result"]
        rows.append([name, sum(outcomes.values()), outcomes["refused by name"], outcomes["the same result"], silent])
    rows = with_total(rows)
    head = ("files", "damaged", "refused by name", "the same result", "another result, or an error without a name")
    return Part("Damaged files", table(head, rows), rows[-1][-1])


def fuzzed(executions: int) -> Part:
    """Give noise to all loaders, and return what came of it."""
    rows: list[list[Any]] = []
    before = highest_memory()
    for name in fuzz.LOADERS:
        with TemporaryDirectory() as folder:
            refused, wrong = fuzz.tried(name, executions, Path(folder))
        counts = ["stopped at the error", "", ""] if wrong else [executions, refused, executions - refused]
        rows.append([name, *counts, wrong or "none"])
    highest, failures = highest_memory(), sum(row[-1] != "none" for row in rows)
    found = table(("loader", "files of noise", "refused by name", "read", "any other error, or more than 10 s"), rows)
    total = f"{executions * (len(rows) - failures):,} files in all; highest memory of the process {highest:.2f} GB."
    return Part("Files of noise", f"{found}\n\n{total}", failures + int(highest - before > MAX_LOADER_GB))


def highest_memory() -> float:
    """Return the highest memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def killed(minutes: float, least: int) -> Part:
    """Kill work for some time, and return what came of it."""
    began, found = time.monotonic(), kills.campaign(60 * minutes, least)
    columns = ("kills", "the same bits", "ANOTHER RESULT OR AN ERROR", "orphans")
    rows = with_total([[kind, *(counts[name] for name in columns)] for kind, counts in found.items()])
    head = ("work", "SIGKILLs", "runs that ended with the same bits", "with others, or an error", "orphans")
    took = (time.monotonic() - began) / 60
    return Part(f"Killed and resumed, {took:.0f} minutes", table(head, rows), rows[-1][-1] + rows[-1][-2])


def worked(minutes: float) -> Part:
    """Work in one process for some time, and return how its memory and open files grew."""
    found = steady.campaign(60 * minutes)
    memory, files = steady.growth(found)
    row = [len(found), f"{found[-1].memory / 1e6:.0f} MB", f"{memory:+.1%}", found[-1].files, f"{files:+d}"]
    text = table(("rounds", "memory", "growth of memory", "open files", "growth of open files"), [row])
    failures = int(memory > MAX_GROWTH) + int(files > 0)
    return Part(f"One process at work, {minutes:g} minutes", f"{STEADY}\n\n{text}", failures)


def memory() -> Part:
    """Measure the memory of stored runs."""
    rows: list[list[Any]] = []
    failures = 0
    for chains, draws in MEMORY_RUNS:
        call = [sys.executable, "-m", "benchmarks.memory", str(chains), str(draws)]
        found = json.loads(subprocess.check_output(call))
        rows.append([chains, draws, f"{found['highest_mb']:.0f} MB", f"{found['growth']:+.1%}"])
        rows[-1].append(f"{found['on_disk_mb']:,.0f} MB")
        failures += found["highest_mb"] > MAX_MEMORY_MB or found["growth"] > MAX_GROWTH
    head = ("chains", "draws", "memory above the empty process", "growth over the second half", "on disk")
    return Part("Memory of stored runs", table(head, rows), failures)


def kept(name: str, make: Callable[[], Part]) -> Part:
    """Return a part of the record: that of an interrupted run, or a new one."""
    path = DONE / f"{name}.json"
    if not path.exists():
        found = make()
        DONE.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial_file:
            partial_file.write_text(json.dumps(found))
    return Part(*json.loads(path.read_text()))


def main() -> None:
    """Run everything, and write the record; exit with 1 where something was not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="of killing and resuming, at least")
    parser.add_argument("--kills", type=int, default=200, help="in all, at least")
    parser.add_argument("--damages", type=int, default=1260, help="per kind of file; some leave it as it was")
    parser.add_argument("--executions", type=int, default=7700, help="of every loader")
    parser.add_argument("--no-memory", action="store_true", help="leave out the runs that measure memory")
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests of other faults")
    parser.add_argument("--write", type=Path, help="page to write")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = [
        kept(f"damages-{options.damages}", lambda: damages(options.damages)),
        kept(f"noise-{options.executions}", lambda: fuzzed(options.executions)),
        kept(f"kills-{options.minutes:g}-{options.kills}", lambda: killed(options.minutes, options.kills)),
        kept(f"steady-{options.minutes:g}", lambda: worked(options.minutes / 5)),
        *([] if options.no_memory else [kept("memory", memory)]),
        *([] if options.no_tests else [kept("tests", faulted)]),
    ]
    text = "\n\n".join(f"## {part.title}\n\n{part.text}" for part in parts)
    print(text)
    if options.write:
        options.write.write_text(f"{PREFACE}\n{text}\n")
    shutil.rmtree(DONE)
    sys.exit(1 if any(part.failures for part in parts) else 0)


PREFACE = """# Reliability

Which faults were tried, how often, and what happened; written by `make soak`, which tries all of them again and fails
where something is not as promised. Damage is a bit flipped, a byte replaced, bytes cut off
or added, a file deleted or replaced by another, at random; "the same result" is a file that was not needed, or that was
computed again. Half of the noise for files with a checksum is forged: an edited header with a right checksum. Work is
killed by SIGKILL after up to 15 seconds, up to 12 times until it ends, and compared with the same work that was never
killed; checkpoints are written at their real intervals. Orphans are processes that outlive a killed one.
Other faults (a full disk, links, bombs, misbehaving scores, killed workers) are tried by tests.
"""
STEADY = """Rounds of sampling into stores, replica exchange, training with checkpoints, fitting, saving, and reading
again all that was written. Growth is over the second half of the rounds: its last half over its first, by the highest
of each."""

if __name__ == "__main__":
    main()

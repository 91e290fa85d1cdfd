"""`make soak`: damage, noise and kills for some minutes; the record is docs/reliability.md.

python -m benchmarks.soak --minutes 20 --write docs/reliability.md
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.soak import damage, fuzz, kills

MEMORY_RUNS = ((200_000, 100), (100, 1_000_000))


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    lines = [list(map(str, head))]
    lines += [["---"] * len(lines[0]), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def damages(trials: int) -> str:
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
    head = ("files", "damaged", "refused by name", "the same result", "another result, or an error without a name")
    rows.append(["all", *(sum(row[i] for row in rows) for i in range(1, 5))])
    return table(head, rows)


def fuzzed(executions: int) -> str:
    """Give noise to all loaders, and return what came of it."""
    rows = []
    for name in fuzz.LOADERS:
        began = time.process_time()
        with TemporaryDirectory() as folder:
            refused = fuzz.fuzz(name, executions, Path(folder))
        rows.append([name, executions, refused, f"{time.process_time() - began:.0f} s"])
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found = table(("loader", "files of noise", "refused by name", "CPU time"), rows)
    return f"{found}\n\nNo crash and no other error; highest memory of the process {highest:.2f} GB."


def open_files() -> int:
    """Return how many files this process has open (Linux)."""
    return len(list(Path("/proc/self/fd").iterdir()))


def killed(seconds: float) -> str:
    """Kill work for some time, and return what came of it."""
    before = open_files()
    found = kills.campaign(seconds)
    columns = ("kills", "the same bits", "ANOTHER RESULT OR AN ERROR", "orphans")
    rows = [[kind, *(counts[name] for name in columns)] for kind, counts in found.items()]
    rows.append(["all", *(sum(counts[name] for counts in found.values()) for name in columns)])
    head = ("work", "SIGKILLs", "runs that ended with the same bits", "with others, or an error", "orphans")
    after = open_files()
    return f"{table(head, rows)}\n\nOpen files of the parent: {before} before, {after} after."


def memory() -> str:
    """Measure the memory of stored runs."""
    rows = []
    for chains, draws in MEMORY_RUNS:
        call = [sys.executable, "-m", "benchmarks.memory", str(chains), str(draws)]
        found = json.loads(subprocess.check_output(call))
        rows.append([f"{chains:,}", f"{draws:,}", f"{found['highest_mb']:.0f} MB", f"{found['growth']:+.1%}"])
        rows[-1].append(f"{found['on_disk_mb']:,.0f} MB")
    return table(("chains", "draws", "memory above that before", "growth over the last quarter", "on disk"), rows)


def main() -> None:
    """Run everything, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of killing and resuming")
    parser.add_argument("--damages", type=int, default=1250, help="per kind of file")
    parser.add_argument("--executions", type=int, default=7700, help="of every loader")
    parser.add_argument("--no-memory", action="store_true", help="leave out the runs that measure memory")
    parser.add_argument("--write", type=Path, help="page to write")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {
        "Damaged files": damages(options.damages),
        "Files of noise": fuzzed(options.executions),
        f"Killed and resumed, {options.minutes:g} minutes": killed(60 * options.minutes),
    }
    if not options.no_memory:
        parts["Memory of stored runs"] = memory()
    text = "\n\n".join(f"## {name}\n\n{part}" for name, part in parts.items())
    print(text)
    if options.write:
        options.write.write_text(f"{PREFACE}\n{text}\n")


PREFACE = """# Reliability

What was tried, how often, and what happened; written by `make soak`, which does all of it again. Damage is a bit
flipped, a byte replaced, bytes cut off or added, a file deleted or replaced by another, at random. "The same result" is
a file that was not needed, or that was computed again. Half of the noise for files with a checksum is forged: an edited
header with a right checksum. Work is killed by SIGKILL after up to 15 seconds, again and again until it ends, and
compared with the same work that was never killed; checkpoints are written at their real intervals.
"""

if __name__ == "__main__":
    main()

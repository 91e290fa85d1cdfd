"""`python -m benchmarks.import_time`: how long `import scoremh` takes, in units of `import torch`.

Every import runs in a process of its own, in turn with the other, so that whatever else the machine does cancels; the
median ratio over rounds is printed. The limit is 1.5.
"""

import argparse
import statistics
import subprocess
import sys

LIMIT = 1.5
SCRIPT = "import time; start = time.process_time(); import {module}; print(time.process_time() - start)"


def seconds(module: str) -> float:
    """Return the CPU time of an import in a fresh process."""
    command = [sys.executable, "-c", SCRIPT.format(module=module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="Number of pairs of fresh processes.")
    rounds = parser.parse_args().rounds
    seconds("scoremh")  # the first one reads the files from disk
    ratios = [seconds("scoremh") / seconds("torch") for _ in range(rounds)]
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"import scoremh: {median:.2f} ({low:.2f} to {high:.2f}) of import torch; the limit is {LIMIT}")
    raise SystemExit(median > LIMIT)


if __name__ == "__main__":
    main()

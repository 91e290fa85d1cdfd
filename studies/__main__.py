"""`python -m studies NAME`: compute a table or a figure, and write its page."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scoremh._shared import checks
from scoremh.sampling.pools import named_pool
from studies.framework import Study, pages, runner

WRONG, STOPPED = 2, 130  # exit codes


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser("studies", description="Compute a table or a figure and write its page.")
    found.add_argument("name", nargs="?", help="name of the study; without one, all are listed")
    found.add_argument("--out", type=Path, default=Path("out"), help="folder for runs")
    found.add_argument("--docs", type=Path, help="folder of page, pictures and results; that of the run if not given")
    pool = "number of processes, or the address of a dask scheduler; the number of cores if not given"
    found.add_argument("--pool", default=str(os.cpu_count()), help=pool)
    rewrite = "compute and draw nothing; write the page from the results in --docs"
    found.add_argument("--rewrite", action="store_true", help=rewrite)
    return found


def listing(studies: dict[str, Study]) -> str:
    """Return the studies, with what they show and what they check."""
    lines = []
    for name, one in studies.items():
        lines += [f"{name}: {one.shows}", *(f"    claim: {claim.statement}" for claim in one.claims.values())]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    given, studies = parser().parse_args(words), runner.all_studies()
    if given.name is None:
        print(listing(studies))
        return
    try:
        if given.name not in studies:
            raise ValueError(checks.message(f"a study, one of {', '.join(studies)}", repr(given.name), "Choose one."))
        if given.rewrite:
            pages.rewrite(studies[given.name], given.docs or Path("docs"))
        else:
            with named_pool(given.pool) as pool:
                runner.run(studies[given.name], given.out, given.docs, pool=pool)
    except KeyboardInterrupt:
        print(f"studies: stopped. Finished cells are in {given.out}; the same command resumes.", file=sys.stderr)
        sys.exit(STOPPED)
    except (ValueError, OSError, ImportError) as error:
        print("studies:", error, *getattr(error, "__notes__", ()), file=sys.stderr)
        sys.exit(WRONG)


if __name__ == "__main__":
    main()

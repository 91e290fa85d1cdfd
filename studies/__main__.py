"""`python -m studies NAME`: compute a table or a figure, and write its page."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scoremh.sampling.pools import named_pool
from studies.framework import catalog, runner

WRONG, STOPPED = 2, 130  # exit codes


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser("studies", description="Compute a table or a figure and write its page.")
    found.add_argument("name", nargs="?", help="name of the study; --list shows them")
    found.add_argument("--list", action="store_true", help="show the studies and what they check")
    found.add_argument("--preset", help='how much to compute: "paper" for the numbers of the documentation')
    found.add_argument("--out", type=Path, default=Path("out"), help="folder for runs")
    found.add_argument("--docs", type=Path, help="folder of page, pictures and results; that of the run if not given")
    pool = (
        "number of processes to compute cells in, or the address of a dask scheduler; the number of cores if not given"
    )
    found.add_argument("--pool", default=str(os.cpu_count()), help=pool)
    found.add_argument("--as-is", action="store_true", help="compute nothing; write the page from existing records")
    redraw = (
        "compute nothing; draw the picture and write the page from the results in --docs, of all studies by default"
    )
    found.add_argument("--redraw", action="store_true", help=redraw)
    return found


def listing() -> str:
    """Return the studies with their presets, what they show and what they check."""
    found = catalog.all_studies()
    width = max(map(len, found))
    lines = []
    for name, one in found.items():
        lines.append(f"{name:{width}}  {', '.join(one.presets)}: {one.shows}")
        lines += [f"{'':{width}}    claim: {claim.statement}" for claim in one.claims.values()]
    return "\n".join(lines)


def carry_out(given: argparse.Namespace) -> None:
    """Carry out the options."""
    if given.redraw:
        for name in [given.name] if given.name else catalog.all_studies():
            runner.redraw(catalog.chosen(name, None)[0], given.docs or Path("docs"))
        return
    study, preset = catalog.chosen(given.name, given.preset)
    with named_pool(given.pool) as pool:
        runner.run(study, preset, given.out, given.docs, pool=pool, as_is=given.as_is)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = parser().parse_args(words)
    if given.list or (given.name is None and not given.redraw):
        print(listing())
        return
    try:
        carry_out(given)
    except KeyboardInterrupt:
        print(f"studies: stopped. Finished cells are in {given.out}; the same command resumes.", file=sys.stderr)
        sys.exit(STOPPED)
    except (ValueError, ImportError) as error:
        print("studies:", error, *getattr(error, "__notes__", ()), file=sys.stderr)
        sys.exit(WRONG)


if __name__ == "__main__":
    main()

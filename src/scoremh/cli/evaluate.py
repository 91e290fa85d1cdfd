"""`scoremh evaluate`: draws beside rows that nothing was learned from."""

from dataclasses import replace
from pathlib import Path

from scoremh.cli.output import Output, Whole
from scoremh.cli.run_files import METRICS, REPORT, load_chains, reference_rows
from scoremh.estimator.run_folder import RunFolder


def evaluate(
    run: Path,
    /,
    *,
    reference: Path | None = None,
    points: Whole = 1000,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Compare the draws with rows that nothing was learned from: distances beside their floors, and a p-value.

    Args:
        run: Folder of the run.
        reference: File with such rows; the held-out rows of the fit by default.
        points: Number of points to compare, at most; the floor takes twice as many rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        output: Verbosity and format of the output.
    """
    folder = RunFolder.open(run)
    chains, (rows, name) = load_chains(folder), reference_rows(folder, reference)
    found = replace(chains.evaluate(rows, points=points, seed=seed, progress=output.verbose), reference=name)
    folder.remove(REPORT)  # it shows other distances
    folder.put(METRICS, found.save)
    output.result(found.to_dict(), f"{found}\nSaved in {run / METRICS}. Next: scoremh report {run}")

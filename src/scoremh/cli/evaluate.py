"""`scoremh evaluate`: draws beside rows that nothing was learned from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from scoremh._shared.progress import numbered_steps
from scoremh.cli.output import Output, Whole


def evaluate(
    run: Path,
    /,
    *,
    reference: Path | None = None,
    points: Whole = 1000,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Compare the draws with rows that nothing was learned from, and give a verdict.

    It judges on all of these rows and draws, at most 2,000 and 1,000 of them; distances, which need as many rows again
    for their floors, on half.

    Args:
        run: Folder of the run.
        reference: File with such rows; the held-out rows of the fit by default.
        points: Number of points to compare, at most; the floor takes twice as many rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        output: Verbosity and format of the output.
    """
    from scoremh._shared.locks import sole_writer
    from scoremh.cli.run_files import METRICS, REPORT, load_chains, reference_rows, removal
    from scoremh.estimator.run_folder import RunFolder

    folder = RunFolder.open(run)
    chains, (rows, name) = load_chains(folder), reference_rows(folder, reference)
    with numbered_steps(2):
        options: dict[str, Any] = {"points": points, "seed": seed, "columns": folder.config["columns"] or ()}
        found = replace(chains.evaluate(rows, **options, progress=output.verbose), reference=name)
    with sole_writer(run):
        removed = folder.put(METRICS, found.save, outdates=(REPORT,))
    text = f"{found}\nSaved in {run / METRICS}{removal(removed, 'other distances')}. Next: scoremh report {run}"
    output.result(found.to_dict() | {"removed": removed}, text)

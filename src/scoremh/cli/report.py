"""`scoremh report`: one page about a run."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scoremh._shared.progress import progress_bar
from scoremh.cli.output import Output

if TYPE_CHECKING:
    from scoremh.estimator.model_report import Source
    from scoremh.estimator.run_folder import RunFolder


def report(run: Path, /, *, reference: Path | None = None, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Write an HTML report: verdict, draws beside rows, traces, acceptance, training and distances.

    Args:
        run: Folder of the run.
        reference: File with rows to show beside the draws; the held-out rows of the fit by default.
        output: Verbosity and format of the output.
    """
    from scoremh import ScoreMH
    from scoremh._shared.locks import sole_writer
    from scoremh.cli.run_files import METRICS, REPORT, load_chains, reference_rows
    from scoremh.estimator.model_report import model_contents
    from scoremh.estimator.run_folder import RunFolder, read_json
    from scoremh.estimator.serialization import load_model
    from scoremh.evaluation import Evaluation
    from scoremh.report import write

    folder = RunFolder.open(run)
    with progress_bar(3, "report", unit="parts", show=output.verbose) as tick:
        chains, (rows, name), model = (
            load_chains(folder),
            reference_rows(folder, reference),
            load_model(ScoreMH, folder),
        )
        tick(1, "step 1 of 3: run loaded")
        evaluation = Evaluation.from_dict(read_json(folder.get(METRICS))) if METRICS in folder.config["files"] else None
        contents = model_contents(model, chains, rows, name, evaluation, source=run_source(folder))
        tick(1, "step 2 of 3: diagnostics computed")
        with sole_writer(run):
            folder.put(REPORT, partial(write, contents))
        tick(1, "step 3 of 3: page written")
    output.result({"run": str(run), "report": str(run / REPORT)}, f"Open {run / REPORT}")


def run_source(folder: "RunFolder") -> "Source":
    """Return where the fit of a run came from, as `config.json` has it.

    Args:
        folder: Folder of the run.
    """
    from scoremh.estimator.model_report import Source

    known = {name: folder.config[name] for name in ("command", "data", "rows", "versions") if name in folder.config}
    return Source(**known)

"""`scoremh fit`: an estimator, learned from a file of rows."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from scoremh._shared.names import AcceptanceName, ProposalName
from scoremh._shared.progress import numbered_steps
from scoremh.cli.output import Flag, Output, Whole, command_line, resumable

if TYPE_CHECKING:
    from scoremh import ScoreMH
    from scoremh.estimator.run_folder import RunFolder

LEARNED = ("potential", "antisymmetric", "free")  # acceptances whose training is a step more


@Parameter(name="*", group="Estimator")
@dataclass(frozen=True)
class Settings:
    """Settings of the estimator.

    Args:
        proposal: Proposal: mala (Langevin), rw (random walk), pcn (preconditioned Crank-Nicolson) or student (random
            walk with steps of Student's distribution, for heavy tails).
        acceptance: Acceptance rule: learned (potential, antisymmetric, free), integrated from the score (simpson,
            adaptive), or always, which is ULA.
        columns: Kinds of columns, NAME=KIND: real, positive, heavy-tailed, ordered, count, category, or bounds such as
            0:1. Those not given are found from the rows.
        noise_level: Noise level of the distribution that the kernel targets, in standard deviations of the data; noise
            connects modes, and is removed from the draws. Chosen by trial chains where not given.
        score_steps: Number of training steps of the score, at most.
        acceptance_steps: Number of training steps of the acceptance, at most.
        annealing_steps: Number of steps of a chain at each noise level of the annealing.
        chain_steps: Number of steps of a chain after annealing.
        seed: Random seed; the same seed gives the same fit.
    """

    proposal: ProposalName = "mala"
    acceptance: AcceptanceName = "potential"
    columns: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = ()
    noise_level: float | None = None
    score_steps: Whole = 8000
    acceptance_steps: Whole = 4000
    annealing_steps: Whole = 20
    chain_steps: Whole = 300
    seed: Whole = 0

    def estimator(self, *, verbose: bool) -> "ScoreMH":
        """Return an estimator with these settings, checked.

        Args:
            verbose: Show progress bars.
        """
        from scoremh import ScoreMH
        from scoremh._shared import checks

        checks.count(self.seed, "seed", at_least=0)
        settings = asdict(self)
        seed = settings.pop("seed")
        settings["columns"] = dict(map(column_kind, self.columns)) or None
        model = ScoreMH(**settings, random_state=seed, verbose=verbose)
        model.check_parameters()
        return model


def fit(
    data: Path,
    /,
    *,
    out: Path,
    key: str | None = None,
    settings: Settings = Settings(),  # noqa: B008  # frozen
    resume: Flag = False,
    overwrite: Flag = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Learn a score, an acceptance and a step size from the rows of a file, and check the fit.

    Args:
        data: File with one sample per row: csv, npy, npz or parquet.
        out: Folder for the run.
        key: Name of the array in an npz file that holds several.
        settings: Settings of the estimator.
        resume: Resume an interrupted fit.
        overwrite: Replace the run that is in the folder.
        output: Verbosity and format of the output.
    """
    from scoremh._shared.files import fingerprint
    from scoremh.datasets import files as tables
    from scoremh.estimator.frames import hashable
    from scoremh.estimator.serialization import json_parameters

    rows, event = tables.read_table(data, key=key)
    model = settings.estimator(verbose=output.verbose)
    asked = {"rows": len(rows), "data_hash": fingerprint(hashable(rows)), **json_parameters(model)}
    del asked["verbose"]
    source = {"command": command_line(), "data": str(data), "rows": len(rows), "event": list(event)}
    with _sole_writer(out, create=not resume):
        folder = _run_folder(out, asked, source, resume=resume, overwrite=overwrite)
        _learn(model, rows, folder)
    found = model.diagnose()
    chosen = {"step_size": model.step_size_, "noise_level": model.noise_level_, "columns": model.columns_}
    result = {"run": str(out), **chosen, "diagnosis": asdict(found)}
    kinds = f"columns:\n{model.table_}\nnoise level {model.noise_level_:g}, step size {model.step_size_:.3g}"
    text = f"{found}\n{kinds}\nSaved in {out}. Next: scoremh sample {out} --draws 1000"
    output.result(result, text)


def column_kind(text: str) -> tuple[str, str | tuple[float, float]]:
    """Return the name of a column and its kind.

    >>> column_kind("quality=ordered"), column_kind("share=0:1")
    (('quality', 'ordered'), ('share', (0.0, 1.0)))
    """
    from scoremh._shared import checks

    name, _, kind = text.rpartition("=")
    low, colon, high = kind.partition(":")
    try:
        return name, (float(low), float(high)) if colon else kind
    except ValueError:
        fix = "For example --columns quality=ordered share=0:1."
        raise ValueError(checks.message("NAME=KIND or NAME=LOW:HIGH", repr(text), fix)) from None


def _learn(model: "ScoreMH", rows: Any, folder: "RunFolder") -> None:
    """Fit an estimator with checkpoints in the folder of its run, and save it there."""
    from scoremh.cli.run_files import TRAINING_CHECKPOINTS, clear_run
    from scoremh.estimator.serialization import save_model

    out = folder.path
    try:
        with resumable(), numbered_steps(5 + (model.acceptance in LEARNED) + (model.noise_level is None)):
            model.fit(rows, checkpoint=out)
            save_model(model, folder)
    except (ValueError, TypeError):
        if not any((out / name).exists() for name in TRAINING_CHECKPOINTS):  # nothing was learned
            clear_run(out)
        raise
    for name in TRAINING_CHECKPOINTS:
        (out / name).unlink(missing_ok=True)


@contextmanager
def _sole_writer(out: Path, *, create: bool) -> Iterator[None]:
    """Hold the lock of a run's folder, which may be created, and is removed again where nothing came into it."""
    from scoremh._shared.locks import sole_writer

    new = not out.exists()
    if create:
        with suppress(OSError):
            out.mkdir(parents=True, exist_ok=True)
    if not out.is_dir():
        yield  # to where the run is created or opened, which says what is wrong
        return
    try:
        with sole_writer(out):
            yield
    finally:
        if new:
            with suppress(OSError):
                out.rmdir()  # only where it is empty


def _run_folder(
    out: Path, asked: dict[str, Any], source: dict[str, Any], *, resume: bool, overwrite: bool
) -> "RunFolder":
    """Return the folder of a run to write to: a new one, or that of the interrupted fit."""
    from scoremh._shared import checks
    from scoremh._shared.files import require_same
    from scoremh.cli.run_files import clear_run
    from scoremh.estimator.run_folder import CONFIG, RunFolder

    if resume:
        folder = RunFolder.open(out)
        if folder.config.get("finished"):
            raise ValueError(checks.message(f"an interrupted fit in {out}", "a finished one", "Leave --resume out."))
        require_same(asked, folder.config.get("asked", {}), out, "fit", "folder")
        return folder
    if (out / CONFIG).exists() and not overwrite:
        fix = "Choose another folder, or add --overwrite, or --resume to resume an interrupted fit."
        raise FileExistsError(checks.message(f"{out} to be a new folder", "one with a run in it", fix))
    clear_run(out)
    return RunFolder.create(out, {**source, "asked": asked, "finished": False})

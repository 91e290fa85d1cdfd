"""`scoremh fit`: an estimator, learned from a file of rows."""

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from cyclopts import Parameter

from scoremh import ScoreMH
from scoremh._shared import checks
from scoremh._shared.files import fingerprint, require_same
from scoremh.cli.output import Flag, Output, Whole, command_line, resumable
from scoremh.cli.run_files import TRAINING_CHECKPOINTS, clear_run
from scoremh.datasets import files as tables
from scoremh.estimator.acceptance_names import AcceptanceName
from scoremh.estimator.run_folder import CONFIG, RunFolder
from scoremh.estimator.serialization import json_parameters, save_model
from scoremh.sampler import ProposalName


@Parameter(name="*", group="Estimator")
@dataclass(frozen=True)
class Settings:
    """Settings of the estimator.

    Args:
        proposal: Proposal: mala (Langevin), rw (random walk) or pcn (preconditioned Crank-Nicolson).
        acceptance: Acceptance rule: learned (potential, antisymmetric, free), integrated from the score (simpson,
            adaptive), or always, which is ULA.
        noise_level: Noise level of the distribution that the kernel targets, in standard deviations of the data; noise
            connects modes, and is removed from the draws.
        score_steps: Number of training steps of the score, at most.
        acceptance_steps: Number of training steps of the acceptance, at most.
        annealing_steps: Number of steps of a chain at each noise level of the annealing.
        chain_steps: Number of steps of a chain after annealing.
        seed: Random seed; the same seed gives the same fit.
    """

    proposal: ProposalName = "mala"
    acceptance: AcceptanceName = "potential"
    noise_level: float = 0.3
    score_steps: Whole = 8000
    acceptance_steps: Whole = 4000
    annealing_steps: Whole = 20
    chain_steps: Whole = 300
    seed: Whole = 0

    def estimator(self, *, verbose: bool) -> ScoreMH:
        """Return an estimator with these settings, checked.

        Args:
            verbose: Show progress bars.
        """
        checks.count(self.seed, "seed", at_least=0)
        settings = asdict(self)
        seed = settings.pop("seed")
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
    x, columns = tables.read(data, key=key, dtype=torch.float64)
    model = settings.estimator(verbose=output.verbose)
    asked = {"rows": len(x), "data_hash": fingerprint(x), **json_parameters(model)}
    del asked["verbose"]
    source = {"command": command_line(), "data": str(data), "rows": len(x), "event": list(x.shape[1:])}
    folder = _run_folder(out, asked, source, resume=resume, overwrite=overwrite)
    flat = x.flatten(1).numpy()
    try:
        with resumable():
            model.fit(pd.DataFrame(flat, columns=columns) if columns else flat, checkpoint=out)
            save_model(model, folder)
    except (ValueError, TypeError):
        if not any((out / name).exists() for name in TRAINING_CHECKPOINTS):  # nothing was learned
            clear_run(out)
            with suppress(OSError):
                out.rmdir()
        raise
    for name in TRAINING_CHECKPOINTS:
        (out / name).unlink(missing_ok=True)
    found = model.diagnose()
    result = {"run": str(out), "step_size": model.step_size_, "diagnosis": asdict(found)}
    text = f"{found}\nstep size {model.step_size_:.3g}\nSaved in {out}. Next: scoremh sample {out} --draws 1000"
    output.result(result, text)


def _run_folder(
    out: Path, asked: dict[str, Any], source: dict[str, Any], *, resume: bool, overwrite: bool
) -> RunFolder:
    """Return the folder of a run to write to: a new one, or that of the interrupted fit."""
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

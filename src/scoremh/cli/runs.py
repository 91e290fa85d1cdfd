"""`scoremh fit`, `sample`, `evaluate` and `report`: all of one run, in one folder."""

import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from scoremh import Chains
from scoremh._shared import checks
from scoremh._shared.files import fingerprint, replacing, require_same
from scoremh._shared.progress import progress_bar
from scoremh.cli import judging
from scoremh.cli.output import Output, Whole, again, command, resumable
from scoremh.datasets import files as tables
from scoremh.estimator import ScoreMH, files
from scoremh.estimator.folder import CONFIG, Folder, read_json
from scoremh.estimator.sampler import AcceptanceName, ProposalName

CHAINS, METRICS, REPORT = "chains.nc", "metrics.json", "report.html"
CHECKPOINTS, SAMPLING = ("score.checkpoint", "acceptance.checkpoint"), "sampling"
KEPT = 50  # draws of a chain


def fit(
    data: Path,
    *,
    out: Path,
    key: str | None = None,
    proposal: ProposalName = "mala",
    acceptance: AcceptanceName = "potential",
    noise: float = 0.3,
    score_steps: Whole = 8000,
    acceptance_steps: Whole = 4000,
    annealing_steps: Whole = 20,
    chain_steps: Whole = 300,
    seed: Whole = 0,
    resume: bool = False,
    overwrite: bool = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Learn score, acceptance and step from rows in a file, and check the fit.

    Args:
        data: A csv, npy, npz or parquet file; rows are samples.
        out: Folder of the run.
        key: Name of the array, where an npz file holds several.
        proposal: Langevin, a random walk, or preconditioned Crank-Nicolson.
        acceptance: The rule: learned in one of three forms, integrated from the score by one of two rules, or always.
        noise: Blurs the law that the kernel runs on, in units of the rows' spread: it connects modes.
        score_steps: Of the score's training, at most.
        acceptance_steps: Of the acceptance's training, at most.
        annealing_steps: Of a chain at each noise level on its way down.
        chain_steps: Of a chain's last kernel.
        seed: Of everything.
        resume: Go on with an interrupted fit.
        overwrite: Remove the run that is in the folder.
        output: How to speak.
    """
    checks.count(seed, "seed", at_least=0)
    x, columns = tables.read(data, key=key, dtype=torch.float64)
    model = ScoreMH(
        proposal,
        acceptance,
        noise=noise,
        score_steps=score_steps,
        acceptance_steps=acceptance_steps,
        annealing_steps=annealing_steps,
        chain_steps=chain_steps,
        verbose=output.talks,
        random_state=seed,
    )
    model.check_parameters()
    asked = {"rows": len(x), "data_hash": fingerprint(x), **files.parameters(model)}
    del asked["verbose"]
    told = {"command": command(), "data": str(data), "rows": len(x), "event": list(x.shape[1:])}
    folder = _begun(out, asked, told, resume=resume, overwrite=overwrite)
    flat = x.flatten(1).numpy()
    try:
        with resumable(again()):
            model.fit(pd.DataFrame(flat, columns=columns) if columns else flat, checkpoint=out)
            files.write(model, folder)
    except (ValueError, TypeError):
        if not any((out / name).exists() for name in CHECKPOINTS):  # nothing was learned: leave nothing behind
            cleared(out)
            with suppress(OSError):
                out.rmdir()
        raise
    for name in CHECKPOINTS:
        (out / name).unlink(missing_ok=True)
    found = model.diagnose()
    result = {"run": str(out), "step_size": model.step_size_, "diagnosis": asdict(found)}
    output.tell(result, f"{found}\nstep size {model.step_size_:.3g}; in {out}. Next: scoremh sample {out} --draws 1000")


def _begun(out: Path, asked: dict[str, Any], told: dict[str, Any], *, resume: bool, overwrite: bool) -> Folder:
    """Return the folder of a run to write into: a new one, or the one that was interrupted."""
    if resume:
        folder = Folder.open(out)
        if folder.config.get("finished"):
            raise ValueError(checks.message(f"an interrupted fit in {out}", "a finished one", "Leave --resume out."))
        require_same(asked, folder.config.get("asked", {}), out, "fit", "folder")
        return folder
    if (out / CONFIG).exists() and not overwrite:
        fix = "Name another folder, or add --overwrite; or --resume, where the fit in it was interrupted."
        raise FileExistsError(checks.message(f"{out} to be a new folder", "one with a run in it", fix))
    cleared(out)
    return Folder.create(out, {**told, "asked": asked, "finished": False})


def cleared(out: Path) -> None:
    """Remove a run, and nothing else, from a folder."""
    if not (out / CONFIG).exists():
        return
    for name in (CONFIG, files.SCORE, files.ACCEPTANCE, files.HELD_OUT, CHAINS, METRICS, REPORT, *CHECKPOINTS):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / SAMPLING, ignore_errors=True)


def sample(
    run: Path,
    *,
    draws: Whole = 1000,
    trace: Whole | None = None,
    csv: Path | None = None,
    seed: Whole = 0,
    resume: bool = False,
    overwrite: bool = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Draw rows, each the end of a chain of its own that began as noise.

    Args:
        run: Folder of the run.
        draws: How many rows, and chains.
        trace: How many steps of each chain to keep, to look at; at most 50 if not given.
        csv: A file for the rows as well.
        seed: Of the chains.
        resume: Go on with an interrupted sampling.
        overwrite: Forget an interrupted sampling.
        output: How to speak.
    """
    folder = Folder.open(run)
    model = files.read(ScoreMH, folder).set_params(verbose=output.talks)
    store, kept = run / SAMPLING, min(KEPT, model.chain_steps) if trace is None else trace
    if not 0 < kept <= model.chain_steps:
        expected = f"a trace of 1 to {model.chain_steps} steps, those of a chain"
        raise ValueError(checks.message(expected, kept, "Keep fewer, or fit with more --chain-steps."))
    checks.count(draws, "draws")
    checks.count(seed, "seed", at_least=0)
    if csv is not None and (csv.is_dir() or not csv.parent.is_dir()):
        raise FileNotFoundError(checks.message("a file to write rows to", csv, "Name one in a folder that is there."))
    if store.exists() != resume and not overwrite:
        got = "one" if store.exists() else "none"
        fix = "Add --resume to go on with it, or --overwrite to forget it." if store.exists() else "Leave --resume out."
        expected = f"{'an' if resume else 'no'} interrupted sampling in {run}"
        raise ValueError(checks.message(expected, got, fix))
    if overwrite:
        shutil.rmtree(store, ignore_errors=True)
    with resumable(again()):
        flat = model.sample_chains(draws, draws=kept, random_state=seed, store=store)
        chains = replace(flat, draws=flat.draws.reshape(draws, kept, *folder.config["event"]))
        if csv is not None:
            names = folder.config["columns"] or [f"x{i}" for i in range(flat.draws.shape[2])]
            with replacing(csv) as partial:
                pd.DataFrame(flat.last.numpy(), columns=names).to_csv(partial, index=False)
        folder.drop(METRICS, REPORT)  # they are of other draws
        folder.put(CHAINS, chains.save)
    shutil.rmtree(store)
    result = {"run": str(run), "draws": draws, "acceptance_rate": chains.acceptance_rate}
    output.tell(result, f"{chains}\nin {run / CHAINS}. Next: scoremh evaluate {run}")


def evaluate(
    run: Path,
    *,
    reference: Path | None = None,
    points: Whole = 1000,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Compare draws with rows that nothing was learned from, each distance beside its floor.

    Args:
        run: Folder of the run.
        reference: A file of such rows; those that the fit held out if not given.
        points: To compare at most; the floor takes twice as many rows of the reference.
        seed: Of what is random in it.
        output: How to speak.
    """
    folder = Folder.open(run)
    chains, rows = _drawn(folder), _rows(folder, reference)
    found = judging.judged({"draws": chains.last}, rows, points, seed=seed, progress=output.talks)
    found["reference"] = "held-out rows" if reference is None else str(reference)
    folder.drop(REPORT)  # it has other distances
    folder.put(METRICS, lambda path: judging.write(found, path))
    output.tell(found, f"{judging.table(found)}\nin {run / METRICS}. Next: scoremh report {run}")


def report(run: Path, *, reference: Path | None = None, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Write one page to look at: draws beside rows, traces, acceptance, losses, distances and warnings.

    Args:
        run: Folder of the run.
        reference: A file of rows to show beside the draws; those that the fit held out if not given.
        output: How to speak.
    """
    folder = Folder.open(run)
    with progress_bar(3, "report", unit="parts", show=output.talks) as tick:
        chains, rows, model = _drawn(folder), _rows(folder, reference), files.read(ScoreMH, folder)
        tick(1, "read")
        metrics = read_json(folder.get(METRICS)) if METRICS in folder.config["files"] else None
        shown = "held-out rows" if reference is None else str(reference)
        contents = judging.contents(model, folder.config, chains, rows, shown, metrics)
        tick(1, "judged")
        folder.put(REPORT, lambda path: judging.page(contents, path))
        tick(1, "drawn")
    output.tell({"run": str(run), "report": str(run / REPORT)}, f"open {run / REPORT}")


def _drawn(folder: Folder) -> Chains:
    return Chains.load(folder.get(CHAINS, f"Make it: scoremh sample {folder.path}."))


def _rows(folder: Folder, reference: Path | None) -> Tensor:
    """Return rows to compare with, in the events of the run."""
    event = folder.config["event"]
    if reference is None:
        return load_file(folder.get(files.HELD_OUT))["rows"].reshape(-1, *event)
    x, columns = tables.read(reference, dtype=torch.float64)
    known, fix = folder.config["columns"], "Bring rows with the columns of the fit."
    if list(x.shape[1:]) != event:
        got = f"{tuple(x.shape[1:])} in {reference}"
        raise ValueError(checks.message(f"rows of shape {tuple(event)}", got, fix))
    if columns and known and columns != known:
        raise ValueError(checks.message(f"the columns {', '.join(known)}", f"{', '.join(columns)} in {reference}", fix))
    return x

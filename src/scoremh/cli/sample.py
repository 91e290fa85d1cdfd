"""`scoremh sample`: new rows from a fitted estimator."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremh._shared.progress import numbered_steps
from scoremh.cli.output import Flag, Output, Whole, resumable

if TYPE_CHECKING:
    from scoremh import ScoreMH

MAX_TRACE = 50  # draws of a chain, by default


def sample(
    run: Path,
    /,
    *,
    draws: Whole = 1000,
    trace: Whole | None = None,
    csv: Path | None = None,
    seed: Whole = 0,
    pool: str | None = None,
    resume: Flag = False,
    overwrite: Flag = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Draw independent rows: each is the end of a chain of its own, started from noise.

    Args:
        run: Folder of the run.
        draws: Number of rows to draw, and of chains.
        trace: Number of draws of each chain to keep for diagnostics; at most 50 by default.
        csv: File to write the rows to, in addition.
        seed: Random seed; the same seed gives the same rows.
        pool: Number of processes to run blocks of chains in, or the address of a dask scheduler, tcp://HOST:8786.
        resume: Resume an interrupted sampling.
        overwrite: Discard an interrupted sampling.
        output: Verbosity and format of the output.
    """
    from scoremh import ScoreMH
    from scoremh._shared.locks import sole_writer
    from scoremh.cli.run_files import CHAINS, METRICS, REPORT, SAMPLING_CHECKPOINTS, removal
    from scoremh.estimator.run_folder import RunFolder
    from scoremh.estimator.serialization import load_model
    from scoremh.sampling.pools import named_pool

    folder = RunFolder.open(run)
    model = load_model(ScoreMH, folder).set_params(verbose=output.verbose)
    store, kept = run / SAMPLING_CHECKPOINTS, min(MAX_TRACE, model.chain_steps) if trace is None else trace
    _check(model, draws, kept, csv, seed)
    with sole_writer(run), named_pool(pool) as workers, resumable(), numbered_steps(2):
        _check_resume(store, resume=resume, overwrite=overwrite)
        flat = model.set_params(pool=workers).sample_chains(draws, draws=kept, random_state=seed, store=store)
        chains = replace(flat, draws=flat.draws.reshape(draws, kept, *folder.config["event"]))
        if csv is not None:
            _write_csv(csv, model.set_output(transform="pandas").to_rows(flat.last))
        removed = folder.put(CHAINS, chains.save, outdates=(METRICS, REPORT))
        shutil.rmtree(store)
    result = {"run": str(run), "draws": draws, "acceptance_rate": chains.acceptance_rate}
    result["removed"] = removed
    text = f"{chains}\nSaved in {run / CHAINS}{removal(removed, 'other draws')}. Next: scoremh evaluate {run}"
    output.result(result, text)


def _check(model: "ScoreMH", draws: int, kept: int, csv: Path | None, seed: int) -> None:
    """Refuse invalid numbers and files."""
    from scoremh._shared import checks

    if not 0 < kept <= model.chain_steps:
        expected = f"a trace of 1 to {model.chain_steps} draws, the steps of a chain"
        raise ValueError(checks.message(expected, kept, "Keep fewer, or fit with more --chain-steps."))
    checks.count(draws, "draws")
    checks.count(seed, "seed", at_least=0)
    if csv is not None and (csv.is_dir() or not csv.parent.is_dir()):
        got = f"{csv}, which is a folder" if csv.is_dir() else f"{csv} in a folder that does not exist"
        raise FileNotFoundError(checks.message("a file to write rows to", got, "Name a file in an existing folder."))


def _check_resume(store: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse to resume nothing, and to start where an interrupted sampling is; discard that if `overwrite`."""
    from scoremh._shared import checks

    if overwrite:
        shutil.rmtree(store, ignore_errors=True)
    elif resume and not store.exists():
        expected = f"an interrupted sampling in {store.parent}"
        raise ValueError(checks.message(expected, "none", "Leave --resume out."))
    elif store.exists() and not resume:
        fix = "Add --resume to resume it, or --overwrite to discard it."
        raise ValueError(checks.message(f"no interrupted sampling in {store.parent}", "one", fix))


def _write_csv(path: Path, frame: Any) -> None:
    from scoremh._shared.files import replacing

    with replacing(path) as partial:
        frame.to_csv(partial, index=False)

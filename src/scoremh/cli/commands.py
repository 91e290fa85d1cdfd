"""The commands: `fit`, `sample`, `evaluate` and `report` on the folder of a run, `demo` and `doctor`.

Each command imports its modules when it runs, so that `scoremh COMMAND --help` does not load torch.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from scoremh import __version__
from scoremh._shared.names import AcceptanceName, ProposalName
from scoremh.cli.app import Flag, Output, Whole, command_line, require_file, require_table, resumable

if TYPE_CHECKING:
    from torch import Tensor

    from scoremh import Chains, ScoreMH
    from scoremh.estimator.diagnosis import Source
    from scoremh.estimator.files import RunFolder


TRAINING_CHECKPOINTS, SAMPLING_CHECKPOINTS = "*.checkpoint", "sampling"


def clear_run(path: Path) -> None:
    """Remove the files of a run from a folder, and nothing else."""
    from scoremh.estimator.files import ACCEPTANCE, CHAINS, CONFIG, HELD_OUT, METRICS, REPORT, SCORE

    if not (path / CONFIG).exists():
        return
    for name in (CONFIG, SCORE, ACCEPTANCE, HELD_OUT, CHAINS, METRICS, REPORT):
        (path / name).unlink(missing_ok=True)
    _clear_checkpoints(path)
    shutil.rmtree(path / SAMPLING_CHECKPOINTS, ignore_errors=True)


def _clear_checkpoints(path: Path) -> None:
    """Remove the checkpoints of a training from a folder."""
    for file in path.glob(TRAINING_CHECKPOINTS):
        file.unlink()


def removal(names: Sequence[str], of: str) -> str:
    """Return a note on files that were removed."""
    return f"; removed {' and '.join(names)}, which {'was' if len(names) == 1 else 'were'} about {of}" if names else ""


def load_chains(folder: "RunFolder") -> "Chains":
    """Return the chains of a run."""
    from scoremh import Chains
    from scoremh.estimator.files import CHAINS

    return Chains.load(folder.get(CHAINS, f"Draw samples first: scoremh sample {folder.path}."))


def reference_rows(folder: "RunFolder", reference: Path | None) -> tuple["Tensor", str]:
    """Return rows to compare draws with, as events of the run, and the name of the rows."""
    import numpy as np
    import torch

    from scoremh import datasets
    from scoremh._shared import checks
    from scoremh._shared.files import reading
    from scoremh.estimator.files import HELD_OUT
    from scoremh.estimator.frames import as_numbers, layout_from_json

    event = folder.config["event"]
    if reference is None:
        with reading(folder.get(HELD_OUT), "held-out rows", "Fit again.") as file:
            return file.tensors["rows"].reshape(-1, *event), "held-out rows"
    rows, shape = datasets.read_table(reference, missing=True)
    columns, known = list(map(str, getattr(rows, "columns", ()))), folder.config["columns"]
    fix = "Pass rows with the columns of the fit."
    if list(shape) != event:
        raise ValueError(checks.message(f"rows of shape {tuple(event)}", f"{shape} in {reference}", fix))
    if columns and known and columns != known:
        raise ValueError(checks.message(f"the columns {', '.join(known)}", f"{', '.join(columns)} in {reference}", fix))
    missing = folder.config["parameters"]["missing"] == "model"
    numbers = np.array(as_numbers(rows, layout_from_json(folder.config["layout"]), missing=missing), dtype=np.float64)
    return torch.from_numpy(numbers).reshape(-1, *event), f"rows of {reference}"


LEARNED = ("potential", "antisymmetric", "free")  # acceptance rules that need a training step


@Parameter(name="*", group="Estimator")
@dataclass(frozen=True)
class Settings:
    """Settings of the estimator.

    Args:
        proposal: Proposal: mala (Langevin), rw (random walk), pcn (preconditioned Crank-Nicolson) or student (random
            walk with Student-t steps, for heavy tails).
        acceptance: Acceptance rule: integrated from the score (simpson, exact), learned (potential, antisymmetric,
            free), or always, which is ULA.
        columns: Kinds of columns, NAME=KIND: real, positive, heavy-tailed, ordered, count, category, date, or bounds
            such as 0:1. The kinds of the other columns are inferred from the rows.
        missing: Missing values: raise an error, or model where values are missing, so that draws have missing values.
        noise_level: Noise level of the distribution that the kernel targets, in standard deviations of the data; noise
            connects modes, and is removed from the draws.
        score_steps: Number of training steps of the score; by default 50 times the square root of the number of rows,
            and at most 3,000; fewer if draws would be closer to rows than rows are to each other, more if farther.
        acceptance_steps: Maximum number of training steps of a learned acceptance.
        annealing_steps: Number of steps of a chain at each noise level of an annealing; 0 starts chains by the
            probability flow.
        chain_steps: Number of steps of a chain after that.
        seed: Random seed; the same seed gives the same fit.
    """

    proposal: ProposalName = "mala"
    acceptance: AcceptanceName = "simpson"
    columns: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = ()
    missing: Literal["raise", "model"] = "raise"
    noise_level: float = 1.0
    score_steps: Whole | None = None
    acceptance_steps: Whole = 4000
    annealing_steps: Whole = 0
    chain_steps: Whole = 50
    seed: Whole = 0

    def estimator(self, *, verbose: bool) -> "ScoreMH":
        """Return an estimator with these settings, after checking them.

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
        data: File with one sample per row: csv, tsv, npy, npz or parquet.
        out: Folder for the run.
        key: Name of the array in an npz file that contains several.
        settings: Settings of the estimator.
        resume: Resume an interrupted fit.
        overwrite: Replace the run that is in the folder.
        output: Verbosity and format of the output.
    """
    require_table(data)
    from scoremh import datasets
    from scoremh._shared.files import fingerprint
    from scoremh.estimator.files import json_parameters
    from scoremh.estimator.frames import hashable

    rows, event = datasets.read_table(data, key=key, missing=True)  # the estimator counts missing values by column
    model = settings.estimator(verbose=output.progress)
    requested = {"rows": len(rows), "data_hash": fingerprint(hashable(rows)), **json_parameters(model)}
    del requested["verbose"]
    source = {"command": command_line(), "data": str(data), "rows": len(rows), "event": list(event)}
    with _sole_writer(out, create=not resume):
        folder = _run_folder(out, requested, source, resume=resume, overwrite=overwrite)
        _learn(model, rows, folder)
    found = model.diagnose()
    chosen = {"step_size": model.step_size_, "noise_level": model.noise_level_, "columns": model.columns_}
    result = {"run": str(out), **chosen, "diagnosis": asdict(found)}
    numbers = f"{found}\nnoise level {model.noise_level_:g}, step size {model.step_size_:.3g}"
    shown = numbers if output.verbose else found.brief
    text = f"{shown}\ncolumns:\n{model.table_}\n{took(model.fit_seconds_)}\nSaved in {out}. {next_rows(out)}"
    output.result(result, text)


def took(seconds: Mapping[str, float]) -> str:
    """Return the time that stages took, as text.

    >>> took({"score": 12.1, "chains": 6.8, "checks": 5.2})
    'took 24 s: score 12, chains 7, checks 5'
    """
    parts = ", ".join(f"{name} {one:.0f}" for name, one in seconds.items())
    return f"took {sum(seconds.values()):.0f} s: {parts}"


def next_rows(run: Path) -> str:
    """Return the command that draws rows from a run."""
    return f"Next: scoremh sample {run} --draws 1000 --csv new.csv"


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
    """Fit an estimator with checkpoints in the run's folder, and save it there."""
    from scoremh._shared.progress import named_steps
    from scoremh.estimator.files import save_model

    out = folder.path
    try:
        annealed, learned = model.annealing_steps > 0, model.acceptance in LEARNED
        names = ["annealing"] * annealed + ["step size"] + ["acceptance"] * learned + ["annealing chains"] * annealed
        with resumable(), named_steps("score", *names, "running chains", "checks"):
            model.fit(rows, checkpoint=out)
            save_model(model, folder)
    except (ValueError, TypeError):
        if not any(out.glob(TRAINING_CHECKPOINTS)):  # nothing was learned
            clear_run(out)
        raise
    _clear_checkpoints(out)


@contextmanager
def _sole_writer(out: Path, *, create: bool) -> Iterator[None]:
    """Hold the lock of a run's folder; create the folder if `create`, and remove a new folder that stays empty."""
    from scoremh._shared.files import sole_writer

    new = not out.exists()
    if create:
        with suppress(OSError):
            out.mkdir(parents=True, exist_ok=True)
    if not out.is_dir():
        yield  # creating or opening the run raises the error
        return
    try:
        with sole_writer(out):
            yield
    finally:
        if new:
            with suppress(OSError):
                out.rmdir()  # fails unless it is empty


def _run_folder(
    out: Path, requested: dict[str, Any], source: dict[str, Any], *, resume: bool, overwrite: bool
) -> "RunFolder":
    """Return the folder to write a run to: a new one, or the folder of the interrupted fit."""
    from scoremh._shared import checks
    from scoremh._shared.files import require_same
    from scoremh.estimator.files import CONFIG, RunFolder

    if resume:
        folder = RunFolder.open(out)
        if folder.config.get("finished"):
            raise ValueError(checks.message(f"an interrupted fit in {out}", "a finished one", "Leave --resume out."))
        require_same(requested, folder.config.get("asked", {}), out, "fit", "folder")
        return folder
    if (out / CONFIG).exists() and not overwrite:
        fix = "Choose another folder, or add --overwrite, or --resume to resume an interrupted fit."
        raise FileExistsError(checks.message(f"{out} to be a new folder", "one with a run in it", fix))
    clear_run(out)
    return RunFolder.create(out, {**source, "asked": requested, "finished": False})


MAX_TRACE = 50  # draws kept of a chain, by default


def sample(
    run: Path,
    /,
    *,
    draws: Whole = 1000,
    trace: Whole | None = None,
    csv: Path | None = None,
    given: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    seed: Whole = 0,
    pool: str | None = None,
    resume: Flag = False,
    overwrite: Flag = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Draw independent rows; each is the last draw of its own chain, started from noise.

    Args:
        run: Folder of the run.
        draws: Number of rows to draw, each from its own chain.
        trace: Number of draws of each chain to keep for diagnostics; at most 50 by default.
        csv: Additional file to write the rows to.
        given: Conditions on the rows, NAME=VALUE or NAME=LOW:HIGH, such as region=west amount=10:20. The rows are
            written to the file of --csv only.
        seed: Random seed; the same seed gives the same rows.
        pool: Number of processes to run blocks of chains in, or the address of a dask scheduler, tcp://HOST:8786.
        resume: Resume an interrupted sampling.
        overwrite: Discard an interrupted sampling.
        output: Verbosity and format of the output.
    """
    require_file(run, "config.json")
    from scoremh import ScoreMH
    from scoremh._shared.files import sole_writer
    from scoremh._shared.progress import named_steps
    from scoremh.estimator.files import CHAINS, METRICS, REPORT, RunFolder, load_model
    from scoremh.sampling.pools import named_pool

    folder = RunFolder.open(run)
    model = load_model(ScoreMH, folder).set_params(verbose=output.progress)
    store, kept = run / SAMPLING_CHECKPOINTS, min(MAX_TRACE, model.chain_steps) if trace is None else trace
    _check(model, draws, kept, csv, seed)
    if given:
        _sample_given(model, draws, given, csv, seed, output)
        return
    began = time.monotonic()
    names = ["annealing chains"] * (model.annealing_steps > 0) + ["running chains"]
    with sole_writer(run), named_pool(pool) as workers, resumable(), named_steps(*names):
        _check_resume(store, resume=resume, overwrite=overwrite)
        flat = model.set_params(pool=workers).sample_chains(draws, draws=kept, random_state=seed, store=store)
        chains = replace(flat, draws=flat.draws.reshape(draws, kept, *folder.config["event"]))
        if csv is not None:
            _write_csv(csv, model.set_output(transform="pandas").to_rows(flat.last))
        removed = folder.put(CHAINS, chains.save, outdates=(METRICS, REPORT))
        shutil.rmtree(store)
    result = {"run": str(run), "draws": draws, "acceptance_rate": chains.acceptance_rate}
    result["removed"] = removed
    rows = f"{draws:,} rows -> {run / CHAINS if csv is None else csv} in {time.monotonic() - began:.0f} s"
    described = f"{chains}\n" * output.verbose
    advice = f"Next: scoremh evaluate {run}" + f", or {next_rows(run)[6:]} for the rows alone" * (csv is None)
    text = f"{described}{rows}\nSaved in {run / CHAINS}{removal(removed, 'other draws')}. {advice}"
    output.result(result, text)


def _sample_given(
    model: "ScoreMH", draws: int, given: Sequence[str], csv: Path | None, seed: int, output: Output
) -> None:
    """Write rows that fulfil conditions to a csv file."""
    from scoremh._shared import checks

    if csv is None:
        fix = "Add --csv rows.csv, for example: a run folder holds draws without conditions only."
        raise ValueError(checks.message("a file for rows that fulfil conditions", "none", fix))
    began = time.monotonic()
    rows = model.set_output(transform="pandas").sample(draws, given=dict(map(condition, given)), random_state=seed)
    _write_csv(csv, rows)
    text = f"{draws:,} rows with {', '.join(given)} -> {csv} in {time.monotonic() - began:.0f} s"
    output.result({"draws": draws, "csv": str(csv)}, text)


def condition(text: str) -> tuple[str, Any]:
    """Return the name of a column and the condition on it.

    >>> condition("region=west"), condition("amount=10:20"), condition("day=2024-01-01:2024-01-31")
    (('region', 'west'), ('amount', (10.0, 20.0)), ('day', ('2024-01-01', '2024-01-31')))
    """
    from scoremh._shared import checks
    from scoremh.datasets import number

    name, equals, value = text.partition("=")
    if not (name and equals and value):
        fix = "For example --given region=west amount=10:20."
        raise ValueError(checks.message("NAME=VALUE or NAME=LOW:HIGH", repr(text), fix))
    low, colon, high = value.partition(":")
    ends = [end if (found := number(end)) is None else found for end in (low, high)]
    return name, tuple(ends) if colon else ends[0]


def _check(model: "ScoreMH", draws: int, kept: int, csv: Path | None, seed: int) -> None:
    """Check numbers and files."""
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
    """Check that there is an interrupted sampling exactly if `resume`; discard it first if `overwrite`."""
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


def evaluate(
    run: Path,
    /,
    *,
    reference: Path | None = None,
    points: Whole = 1000,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Compare the draws with rows that were not used in the fit, and give a verdict.

    The checks use all of these rows and draws, up to 2,000 rows and 1,000 draws. The distances use half of them, since
    their floors need the same number of rows again.

    Args:
        run: Folder of the run.
        reference: File with rows that were not used in the fit; the held-out rows of the fit by default.
        points: Maximum number of points to compare; the floor takes twice this number of rows of the reference.
        seed: Random seed; the same seed gives the same numbers.
        output: Verbosity and format of the output.
    """
    require_file(run, "config.json")
    if reference is not None:
        require_table(reference)
    from scoremh import ScoreMH
    from scoremh._shared.files import sole_writer, write_json
    from scoremh._shared.progress import named_steps
    from scoremh.estimator.diagnosis import evaluate_model
    from scoremh.estimator.files import METRICS, REPORT, RunFolder, load_model

    folder = RunFolder.open(run)
    chains, (rows, name) = load_chains(folder), reference_rows(folder, reference)
    model = load_model(ScoreMH, folder)
    with named_steps("distances", "checks"):
        draws, rows = chains.last.flatten(1), rows.flatten(1)
        found = evaluate_model(model, draws, rows, name, points=points, seed=seed, progress=output.progress)
    with sole_writer(run):
        removed = folder.put(METRICS, partial(write_json, contents=found.to_dict()), outdates=(REPORT,))
    text = f"{found}\nSaved in {run / METRICS}{removal(removed, 'other distances')}. Next: scoremh report {run}"
    output.result(found.to_dict() | {"removed": removed}, text)


def report(run: Path, /, *, reference: Path | None = None, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Write an HTML report: verdict, draws beside rows, traces, acceptance, training and distances.

    Args:
        run: Folder of the run.
        reference: File with rows to show beside the draws; the held-out rows of the fit by default.
        output: Verbosity and format of the output.
    """
    require_file(run, "config.json")
    if reference is not None:
        require_table(reference)
    from scoremh import ScoreMH
    from scoremh._shared.files import read_json, sole_writer
    from scoremh._shared.progress import progress_bar
    from scoremh.estimator.diagnosis import model_contents
    from scoremh.estimator.files import METRICS, REPORT, RunFolder, load_model
    from scoremh.evaluation import Evaluation
    from scoremh.report import write

    folder = RunFolder.open(run)
    with progress_bar(3, "report", unit="parts", show=output.progress) as tick:
        chains, (rows, name), model = (
            load_chains(folder),
            reference_rows(folder, reference),
            load_model(ScoreMH, folder),
        )
        tick(1, "step 1 of 3: run loaded")
        evaluation = None
        if (run / METRICS).exists():
            fix = f"Evaluate again: scoremh evaluate {run}."
            evaluation = Evaluation.from_dict(read_json(folder.get(METRICS), fix))
        contents = model_contents(model, chains, rows, name, evaluation, source=run_source(folder))
        tick(1, "step 2 of 3: diagnostics computed")
        with sole_writer(run):
            folder.put(REPORT, partial(write, contents))
        tick(1, "step 3 of 3: page written")
    output.result({"run": str(run), "report": str(run / REPORT)}, f"Open {run / REPORT}")


def run_source(folder: "RunFolder") -> "Source":
    """Return the origin of a fit, as recorded in `config.json`."""
    from scoremh.estimator.diagnosis import Source

    known = {name: folder.config[name] for name in ("command", "data", "rows", "versions") if name in folder.config}
    return Source(**known)


def demo(
    *,
    out: Path = Path("out/demo"),
    picture: Path | None = None,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Show what the accept step is worth: two moons, a product of learned scores, a table.

    Args:
        out: Folder for the table and its report; an earlier demo in it is replaced.
        picture: File for the picture; demo.png in the folder by default.
        seed: Random seed; the same seed gives the same run.
        output: Verbosity and format of the output.
    """
    from scoremh.cli.demo import run_demo

    run_demo(out, out / "demo.png" if picture is None else picture, seed, output)


REQUIRED = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "jaxtyping", "arviz-base", "arviz-stats", "rich")


class Extra(NamedTuple):
    """An extra of the package.

    Args:
        purpose: Purpose of the extra.
        packages: Packages that it installs.
    """

    purpose: str
    packages: tuple[str, ...]


EXTRAS = {
    "cli": Extra("the command line, data frames", ("cyclopts", "pandas")),
    "report": Extra("reports and pictures", ("jinja2", "matplotlib", "pillow", "plotly")),
    "metrics": Extra("exact Wasserstein distances, `scoremh evaluate`", ("pot",)),
    "flows": Extra("the normalizing flow in the study of Table 1", ("zuko",)),
    "parquet": Extra("parquet files", ("pandas", "pyarrow")),
    "diffusers": Extra("models of the library diffusers", ("diffusers",)),
    "cluster": Extra("chains in other processes and on a dask cluster", ("cloudpickle", "dask", "distributed")),
    "zarr": Extra("reading a stored run with xarray", ("zarr",)),
    "docs": Extra(
        "building the pages of the documentation",
        ("furo", "myst-nb", "sphinx", "sphinx-copybutton", "sphinx-mathjax-offline"),
    ),
}


def doctor(*, output: Output = Output()) -> None:  # noqa: B008  # frozen
    """Show versions, threads, devices, and which extras are installed.

    Args:
        output: Verbosity and format of the output.
    """
    import torch

    versions = {name: _version(name) for name in REQUIRED} | {"torch": str(torch.__version__)}  # with its build
    found: dict[str, Any] = {
        "scoremh": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        + ["mps"] * torch.backends.mps.is_available(),
        "extras": {name: _extra_status(extra) for name, extra in EXTRAS.items()},
        "browser": shutil.which("chromium") or shutil.which("google-chrome"),
    }
    lines = [
        f"scoremh {found['scoremh']}, Python {found['python']}, {found['system']}",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"{found['cores']} cores, torch uses {found['threads']} threads; devices: {', '.join(found['devices'])}",
        "extras:",
        *(_extra_line(name, status) for name, status in found["extras"].items()),
        f"browser for the tests of the report: {found['browser'] or 'not found'}",
    ]
    output.result(found, "\n".join(lines))


def _extra_status(extra: Extra) -> dict[str, Any]:
    """Return the purpose of an extra, whether it is installed, and the versions of its packages."""
    packages = {name: _version(name) for name in extra.packages}
    return {"purpose": extra.purpose, "installed": "missing" not in packages.values(), "packages": packages}


def _extra_line(name: str, status: dict[str, Any]) -> str:
    packages = ", ".join(f"{package} {version}" for package, version in status["packages"].items())
    fix = "" if status["installed"] else f". Install it: pip install 'scoremh[{name}]'"
    return f"  {name:8} {'installed' if status['installed'] else 'missing  '}  {status['purpose']} ({packages}){fix}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"

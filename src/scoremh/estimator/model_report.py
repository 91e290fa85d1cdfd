"""The report of a fitted estimator: draws beside rows, chains, training, metrics and warnings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from scoremh import diagnostics
from scoremh.diagnostics import Caution
from scoremh.estimator.acceptance_names import acceptance_name
from scoremh.estimator.adjustment import adjustment_line
from scoremh.evaluation import Evaluation
from scoremh.evaluation.verdicts import number
from scoremh.report import Contents, write
from scoremh.report.chain_report import chains_line, distances_line, metrics_table, try_evaluation
from scoremh.sampling.chains import Chains
from scoremh.training import versions

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH

PROPOSALS = {"mala": "MALA", "rw": "RW", "pcn": "pCN", "student": "Student RW"}


@dataclass(frozen=True)
class Source:
    """Where a fit came from, as the head of its report says it.

    Args:
        command: Command that fitted it.
        data: Name of the data.
        rows: Number of rows of the data; None if unknown.
        versions: Versions of the libraries that it was fitted with.
    """

    command: str = "ScoreMH(...).fit(...), in Python"
    data: str = "rows in memory"
    rows: int | None = None
    versions: Mapping[str, str] = field(default_factory=versions)


def write_report(model: "ScoreMH", path: str | Path, chains: Chains, rows: Tensor, rows_name: str) -> None:
    """Write the report of an estimator, with an evaluation where that is possible.

    Args:
        model: Fitted estimator.
        path: HTML file to write.
        chains: Chains that it drew.
        rows: Rows to show beside them.
        rows_name: What these rows are.
    """
    columns = _column_names(model, rows)
    write(model_contents(model, chains, rows, rows_name, try_evaluation(chains, rows, rows_name, columns)), path)


def model_contents(
    model: "ScoreMH",
    chains: Chains,
    rows: Tensor,
    rows_name: str,
    evaluation: Evaluation | None,
    *,
    source: Source | None = None,
    samples: Mapping[str, Tensor] | None = None,
) -> Contents:
    """Return the contents of the report of an estimator.

    Args:
        model: Fitted estimator.
        chains: Chains that it drew.
        rows: Rows `(row, *event)` to show beside them.
        rows_name: What these rows are.
        evaluation: Evaluation of the draws, where there is one.
        source: Where the fit came from.
        samples: Samples by sampler, in place of the last draws of the chains.
    """
    own, source = sampler_name(model), source or Source()
    columns = _column_names(model, rows)
    count = "" if source.rows is None else f", {source.rows:,} rows of {len(columns)} columns"
    histories = {"score": model.score_.history}
    if model.acceptance_ is not None:
        histories["acceptance"] = model.acceptance_.history
    return Contents(
        title=f"{own}: {source.data}",
        about={
            "command": source.command,
            "data": f"{source.data}{count}",
            "shown beside the draws": f"{len(rows):,} {rows_name}",
            "sampler": f"{own}, step size {model.step_size_:.3g}, {model.chain_steps} steps after annealing",
            "accept step while annealing": adjustment_line(model.sampler_),
            "chains": chains_line(chains),
            "numbers of the fit": _numbers(model),
            "distances": distances_line(evaluation, rows),
            "versions": ", ".join(f"{name} {version}" for name, version in source.versions.items()),
        },
        columns=columns,
        data=rows,
        samples={own: chains.last} if samples is None else samples,
        chains=chains,
        histories=histories,
        metrics=metrics_table(evaluation, own),
        floors={} if evaluation is None else evaluation.floors,
        warnings=_warnings(model, chains, evaluation),
        verdict=model.diagnose().verdict,
        checks=model.diagnose().checks,
    )


def sampler_name(model: "ScoreMH") -> str:
    """Return the name of an estimator's sampler: Score MALA (potential), ULA.

    Args:
        model: Fitted estimator.
    """
    name = acceptance_name(model.sampler_.acceptance)
    return "ULA" if name == "always" else f"Score {PROPOSALS[model.sampler_.proposal]} ({name})"


def _numbers(model: "ScoreMH") -> str:
    """Return the numbers of the diagnosis that no check shows."""
    found = model.diagnose().numbers()
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in found.items())


def _column_names(model: "ScoreMH", rows: Tensor) -> list[str]:
    unnamed = [f"x{i}" for i in range(rows.shape[1:].numel())]
    return [str(name) for name in getattr(model, "feature_names_in_", unnamed)]


def _warnings(model: "ScoreMH", chains: Chains, evaluation: Evaluation | None) -> list[Caution]:
    """Return the cautions of the fit, of these chains, and of the evaluation; R-hat decides nothing on their ends."""
    found = [one for one in (*model.diagnose().warnings, *diagnostics.summary(chains).warnings) if one.kind != "r_hat"]
    return [*found, *([] if evaluation is None else evaluation.warnings)]

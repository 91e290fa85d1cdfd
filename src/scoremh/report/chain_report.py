"""The report of chains alone: their draws beside a reference, where there is one, or beside all draws."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from torch import Tensor

from scoremh import diagnostics
from scoremh.evaluation import MIN_ROWS, Evaluation, evaluate
from scoremh.report.contents import Contents
from scoremh.sampling.chains import Chains

MAX_ROWS = 5000  # of all draws, where there is no reference


def chain_contents(chains: Chains, reference: Tensor | None = None, columns: Sequence[str] = ()) -> Contents:
    """Return the contents of a report of chains.

    Args:
        chains: Chains to show.
        reference: Rows `(row, *event)` to compare the last draws with; none if None.
        columns: Names of the coordinates; x0, x1, ... if empty.
    """
    event = chains.draws.shape[2:]
    columns = columns or [f"x{i}" for i in range(event.numel())]
    evaluation = None if reference is None else try_evaluation(chains, reference, columns=columns)
    every = chains.draws.flatten(0, 1)
    data = every[:: -(-len(every) // MAX_ROWS)] if reference is None else reference
    warnings = [*diagnostics.summary(chains).warnings, *([] if evaluation is None else evaluation.warnings)]
    return Contents(
        title="Chains",
        about={
            "sampler": chains.description,
            "chains": chains_line(chains),
            "distances": distances_line(evaluation, reference),
        },
        columns=columns,
        data=data,
        samples={"last draws": chains.last},
        chains=chains,
        metrics=metrics_table(evaluation, "last draws"),
        floors={} if evaluation is None else evaluation.floors,
        warnings=warnings,
        data_name="all draws" if reference is None else "the reference",
        verdict=None if evaluation is None else evaluation.verdict,
        checks=() if evaluation is None else evaluation.checks,
    )


def try_evaluation(
    chains: Chains, reference: Tensor, name: str = "the reference", columns: Sequence[str] = ()
) -> Evaluation | None:
    """Return the evaluation of the last draws; None where the reference is too small, or the extra `metrics` missing.

    Args:
        chains: Chains to evaluate.
        reference: Rows `(row, *event)` to compare the last draws with.
        name: What these rows are.
        columns: Names of the coordinates.
    """
    if find_spec("ot") is None or len(reference) < MIN_ROWS:
        return None
    return replace(evaluate(chains.last, reference, columns=columns), reference=name)


def chains_line(chains: Chains) -> str:
    """Return number, length, acceptance and cost of chains.

    Args:
        chains: The chains.
    """
    n, kept = chains.draws.shape[:2]
    cost = f", {chains.score_calls / chains.moves:.3g} score calls per accepted move" if chains.moves else ""
    return f"{n:,} with {kept} draws each; acceptance {chains.acceptance_rate:.3f}{cost}"


def distances_line(evaluation: Evaluation | None, reference: Tensor | None) -> str:
    """Return what draws were compared with, or why they were not.

    Args:
        evaluation: The evaluation, where there is one.
        reference: Rows to compare with, where there are some.
    """
    if evaluation is not None:
        return f"{evaluation.points:,} points each, to {evaluation.reference}"
    if reference is None:
        return "none: no reference"
    if len(reference) < MIN_ROWS:
        return f"none: fewer than {MIN_ROWS} rows to compare with"
    return "none: pip install 'scoremh[metrics]'" if find_spec("ot") is None else "none yet: run `scoremh evaluate`"


def metrics_table(evaluation: Evaluation | None, own: str) -> dict[str, dict[str, float | None]]:
    """Return metrics and p-values by sampler, as a report shows them.

    Args:
        evaluation: The evaluation, where there is one.
        own: Name of the run's own sampler, whose samples an evaluation calls "draws".
    """
    if evaluation is None:
        return {}
    return {
        own if name == "draws" else name: {**values, "p_value": evaluation.p_values[name]}
        for name, values in evaluation.metrics.items()
    }

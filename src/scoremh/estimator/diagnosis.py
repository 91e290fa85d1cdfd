"""The diagnosis of a fit: a verdict in words, the checks behind it, numbers of the fit, and cautions.

Rows that an estimator draws are ends of independent chains, so the verdict is on these ends, compared with rows. ESS
and R-hat are of the last kernel's steps: how fast it forgets where annealing left a chain. They decide nothing.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scoremh import diagnostics, diffusion
from scoremh.balance_matching import AcceptanceFit
from scoremh.diagnostics import Caution
from scoremh.estimator.adjustment import adjustment_cautions
from scoremh.estimator.advice import advice, still_falling
from scoremh.estimator.mode_weights import weights_known_to
from scoremh.evaluation import MIN_ROWS, Agreement, Check, Verdict, agreement, verdict
from scoremh.evaluation.verdicts import html_table, html_verdict, number, text_table
from scoremh.sampler import Sampler
from scoremh.sampling.chains import Chains
from scoremh.score_matching import ScoreFit, implicit_losses

MAX_BALANCE_RESIDUAL, MIN_ACCEPTANCE_RATE = 0.5, 0.05  # beyond, there is a caution
MAX_WEIGHED_COLUMNS = 64  # beyond, log p of rows costs more than the fit
MAX_WEIGHT_ERROR = 0.25
MAX_DENSITIES = 1000  # draws and rows whose log p is compared
UNTESTED = Verdict("usable", "not tested")


@dataclass(frozen=True)
class Diagnosis:
    """What a fit found when it checked itself; print it for the verdict, the checks, the numbers and the cautions.

    Args:
        held_out_loss: Implicit score-matching loss on held-out rows; lower is better, and it may be negative.
        conservativity: Asymmetry of the score's Jacobian at the kernel's noise level; 0 for a gradient.
        balance_residual: Root mean square error, in log units, of the detailed balance of a learned acceptance.
        acceptance_rate: Share of the last kernel's moves that were accepted.
        ess: Effective sample size of all steps of the last kernel together, smallest over the coordinates; None for
            short chains.
        r_hat: R-hat of these steps, largest over the coordinates; None for short chains. Rows that are drawn are ends
            of independent chains, for which it is no criterion.
        weights_known_to: Relative error of the weights of modes, by two estimates of log p from the same score.
        noticed_shift: Shift of one column, in standard deviations, that the checks would have noticed.
        verdict: Good, usable, or do not use, with the reason and what to do.
        checks: Checks of draws against rows.
        warnings: What a reader should know of this fit besides.
    """

    held_out_loss: float | None
    conservativity: float | None
    balance_residual: float | None
    acceptance_rate: float
    ess: float | None
    r_hat: float | None
    weights_known_to: float | None = None
    noticed_shift: float | None = None
    verdict: Verdict = UNTESTED
    checks: tuple[Check, ...] = ()
    warnings: tuple[Caution, ...] = ()

    def __str__(self) -> str:
        """Return the verdict, the table of checks, a line of numbers, and a line for each caution."""
        numbers = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in self.numbers().items())
        table = [text_table(self.checks)] if self.checks else []
        return "\n".join([str(self.verdict), *table, numbers, *map(str, self.warnings)])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        numbers = "".join(
            f"<tr><td>{name.replace('_', ' ')}</td><td>{number(value)}</td></tr>"
            for name, value in self.numbers().items()
        )
        cautions = "".join(f"<li>{html.escape(str(one))}</li>" for one in self.warnings)
        tables = html_table(self.checks) if self.checks else ""
        return f"{html_verdict(self.verdict)}{tables}<table>{numbers}</table><ul>{cautions}</ul>"

    def numbers(self) -> dict[str, float]:
        """Return the numbers that could be computed, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, float)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Diagnosis":
        """Return the diagnosis of which `dataclasses.asdict` gave the record.

        Args:
            record: Fields by name, as JSON holds them.
        """
        parts = {
            "verdict": Verdict(**record["verdict"]),
            "checks": tuple(Check(**one) for one in record["checks"]),
            "warnings": tuple(Caution(**one) for one in record["warnings"]),
        }
        return cls(**record | parts)


def diagnose(
    sampler: Sampler,
    chains: Chains,
    held_out: Tensor,
    columns: Sequence[str],
    *,
    seen: Tensor | None = None,
    numbers: Callable[[Tensor], Tensor] = lambda points: points,
    generator: torch.Generator,
) -> Diagnosis:
    """Return the diagnosis of a fit.

    Args:
        sampler: Sampler that was learned.
        chains: Chains that it drew.
        held_out: Rows that it has not seen, in the coordinates that the score was learned in.
        columns: Names of the columns.
        seen: Rows that it was fitted to, to compare with more rows.
        numbers: Function from these coordinates to the numbers of the table, in which draws are compared with rows.
        generator: Random number generator; the same seed gives the same diagnosis.
    """
    table = diagnostics.summary(chains).table
    loss = conservativity = balance = weights = None
    if len(held_out) >= MIN_ROWS:
        assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
        loss = float(implicit_losses(sampler.score, held_out).mean())
        blurred, score = sampler.blur(held_out, generator=generator), sampler.target.score
        assert score is not None
        conservativity = diagnostics.conservativity(score, blurred, generator=generator).asymmetry
        if held_out[0].numel() <= MAX_WEIGHED_COLUMNS:
            weights = weights_known_to(sampler.score, held_out)
        if isinstance(sampler.acceptance, AcceptanceFit):
            parts = sampler.acceptance, sampler.target, sampler.tuned_proposal
            residual = diagnostics.balance_residual(*parts, blurred, groups=1, generator=generator)
            balance = residual.integral.rms
    found = Diagnosis(
        loss,
        conservativity,
        balance,
        chains.acceptance_rate,
        _finite(table["ess_bulk"].min()),
        _finite(table["r_hat"].max()),
        weights,
    )
    rows = held_out if seen is None else torch.cat([held_out, seen])
    found = replace(found, **judge(sampler, chains.last, rows, len(held_out), columns, numbers, generator))
    return replace(found, warnings=(*_cautions(found), *adjustment_cautions(sampler)))


def judge(
    sampler: Sampler,
    draws: Tensor,
    rows: Tensor,
    held: int,
    columns: Sequence[str],
    numbers: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Return verdict, checks and noticed shift of draws.

    Args:
        sampler: Sampler that was learned.
        draws: Independent draws, in the coordinates that the score was learned in.
        rows: Rows, in the same coordinates; those that it has not seen come first.
        held: Number of rows that it has not seen.
        columns: Names of the columns.
        numbers: Function from these coordinates to the numbers of the table, in which draws are compared with rows.
        generator: Random number generator; the same seed gives the same answer.
    """
    lost = int((~draws.flatten(1).isfinite().all(1)).sum())
    if lost:
        reason = f"{lost:,} of {len(draws):,} draws are not finite; the limit is 0"
        return {"verdict": Verdict("do not use", reason, advice(sampler, (), len(rows)))}
    if held < MIN_ROWS:
        reason = f"only {held} rows were held out, and {MIN_ROWS} are needed to test the draws"
        return {"verdict": Verdict("usable", reason, f"Fit with at least {10 * MIN_ROWS} rows.")}
    densities = None
    if draws[0].numel() <= MAX_WEIGHED_COLUMNS // 2:
        some = draws[:MAX_DENSITIES], rows[torch.randperm(len(rows), generator=generator)[:MAX_DENSITIES]]
        with torch.inference_mode():
            densities = tuple(diffusion.log_density(sampler.score, one) for one in some)
    seen = numbers(rows[held:]) if len(rows) > held else None
    options: dict[str, Any] = {"seen": seen, "log_densities": densities, "generator": generator}
    judged = agreement(numbers(draws), numbers(rows[:held]), columns, **options)
    said = _verdict(sampler, judged, len(rows))
    return {"verdict": said, "checks": judged.checks, "noticed_shift": judged.noticed_shift}


def _verdict(sampler: Sampler, judged: Agreement, rows: int) -> Verdict:
    """Return the verdict that checks of draws lead to; good only where the training had settled."""
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    said = verdict(*judged)
    if said.level == "good" and still_falling(sampler.score):
        steps = sampler.score.recipe.steps
        said = Verdict("usable", f"training ended after {steps:,} steps, before its held-out loss had settled")
    if said.level != "good" and not said.advice:
        said = replace(said, advice=advice(sampler, judged.checks, rows))
    return said


def _finite(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None


def _cautions(found: Diagnosis) -> list[Caution]:
    cautions = []
    if found.weights_known_to is not None and found.weights_known_to > MAX_WEIGHT_ERROR:
        text = (
            f"Weights of modes known to +- {100 * found.weights_known_to:.0f} %: two estimates of log p from the same "
            "score differ by that much."
        )
        cautions.append(Caution("weights_known_to", found.weights_known_to, text))
    if found.balance_residual is not None and found.balance_residual > MAX_BALANCE_RESIDUAL:
        text = (
            f"Balance residual {found.balance_residual:.2g}: the learned acceptance is off by that much in log units. "
            'Increase acceptance_steps, or use acceptance="simpson".'
        )
        cautions.append(Caution("balance_residual", found.balance_residual, text))
    if found.acceptance_rate < MIN_ACCEPTANCE_RATE:
        text = f"Acceptance rate {found.acceptance_rate:.2g}: the chains hardly move."
        cautions.append(Caution("acceptance_rate", found.acceptance_rate, text))
    return cautions

"""The diagnosis of a fit: a verdict in words, the checks behind it, numbers of the fit, and cautions.

Rows that an estimator draws are ends of independent chains, so the verdict is on these ends, compared with rows. ESS
and R-hat are of the last kernel's steps: how fast it forgets where annealing left a chain. They decide nothing.

The file has `Diagnosis` and `diagnose`; the numbers behind them: at which noise levels an accept step means something
(`find_adjustment`), and how well the weights of modes are known (`weights_known_to`); the one thing to do next for a
fit that is not good (`advice`); and the contents of the report of a fitted estimator (`model_contents`).
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scoremh import annealing, diagnostics, diffusion
from scoremh.acceptance import Always, LineIntegral, Rule
from scoremh.balance_matching import AcceptanceFit
from scoremh.diagnostics import MAX_CIRCULATION, Caution, conservativity_by_level, lowest_conservative_level
from scoremh.evaluation import (
    MIN_ROWS,
    Agreement,
    Check,
    Evaluation,
    Verdict,
    agreement,
    html_table,
    html_verdict,
    number,
    text_table,
    verdict,
    worst,
)
from scoremh.report import Contents
from scoremh.report.page import chains_line, distances_line, metrics_table
from scoremh.sampler import ANNEALING_LEVELS, ANNEALING_STEP_SIZE, Sampler
from scoremh.sampling.chains import Chains
from scoremh.score_matching import ScoreFit, implicit_losses
from scoremh.training import versions

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH


RULES: Mapping[str, Rule] = {
    "simpson": LineIntegral("simpson"),
    "adaptive": LineIntegral("adaptive"),
    "always": Always(),
}


def acceptance_name(acceptance: Rule | AcceptanceFit | None) -> str:
    """Return the name of a rule, or of the form of a learned acceptance."""
    if isinstance(acceptance, AcceptanceFit):
        return type(acceptance.net).__name__.lower()
    return next(name for name, rule in RULES.items() if rule == acceptance)


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
    """Return the diagnosis of a fit."""
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
    judged = judge(sampler, chains.last, rows, len(held_out), columns, numbers, generator)
    found = replace(found, verdict=judged.verdict, checks=judged.checks, noticed_shift=judged.noticed_shift)
    return replace(found, warnings=(*_cautions(found), *adjustment_cautions(sampler)))


class Judgement(NamedTuple):
    """The verdict on draws, and what it is founded on."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()
    noticed_shift: float | None = None


def judge(
    sampler: Sampler,
    draws: Tensor,
    rows: Tensor,
    held: int,
    columns: Sequence[str],
    numbers: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Judgement:
    """Return the verdict on draws, by rows of which the first `held` are held out, in the coordinates of the score."""
    lost = int((~draws.flatten(1).isfinite().all(1)).sum())
    if lost:
        reason = f"{lost:,} of {len(draws):,} draws are not finite; the limit is 0"
        return Judgement(Verdict("do not use", reason, advice(sampler, (), len(rows))))
    if held < MIN_ROWS:
        reason = f"only {held} rows were held out, and {MIN_ROWS} are needed to test the draws"
        return Judgement(Verdict("usable", reason, f"Fit with at least {10 * MIN_ROWS} rows."))
    densities = None
    if draws[0].numel() <= MAX_WEIGHED_COLUMNS // 2:
        some = rows[torch.randperm(len(rows), generator=generator)[:MAX_DENSITIES]]
        with torch.inference_mode():
            of_draws = diffusion.log_density(sampler.score, draws[:MAX_DENSITIES])
            densities = of_draws, diffusion.log_density(sampler.score, some)
    seen = numbers(rows[held:]) if len(rows) > held else None
    found = agreement(
        numbers(draws), numbers(rows[:held]), columns, seen=seen, log_densities=densities, generator=generator
    )
    return Judgement(_verdict(sampler, found, len(rows)), found.checks, found.noticed_shift)


def _verdict(sampler: Sampler, judged: Agreement, rows: int) -> Verdict:
    """Return the verdict that checks of draws lead to; good only where the training had settled."""
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    said = verdict(judged)
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


MAX_CIRCULATION_ROWS = 500  # that the circulation is measured at


def find_adjustment(sampler: Sampler, rows: Tensor, *, generator: torch.Generator | None = None) -> Sampler:
    """Return the sampler that anneals with an accept step only where its score has little circulation."""
    low, high = sampler.noise_range
    levels, step = annealing.karras(high, low, ANNEALING_LEVELS), math.sqrt(2 * ANNEALING_STEP_SIZE)
    u = sampler.score.coordinates.inverse(rows[:MAX_CIRCULATION_ROWS])
    found = conservativity_by_level(sampler.score.standard.at, levels, u, step=step, generator=generator)
    lowest = lowest_conservative_level(found)
    return replace(sampler, accept_above=0.0 if lowest == levels[-1] else lowest)


def adjustment_line(sampler: Sampler) -> str:
    """Return at which noise levels annealing has an accept step, as a report says it."""
    if isinstance(sampler.acceptance, Always):
        return "none"
    limit = f"{MAX_CIRCULATION:g} nats around a triangle of the size of a step"
    if sampler.accept_above == 0:
        return f"at every noise level: log p returns within {limit}"
    return f"at noise levels from {sampler.accept_above:.3g} up: below, log p fails to return within {limit}"


def adjustment_cautions(sampler: Sampler) -> list[Caution]:
    """Return a caution where the kernel integrates its score below the levels at which that means something."""
    if sampler.noise_level >= sampler.accept_above or not isinstance(sampler.rule, LineIntegral):
        return []
    text = (
        f"At the kernel's noise level {sampler.noise_level:.3g} an accept step means little: the integral of the score "
        f"depends on its way by more than {MAX_CIRCULATION:g} nats. Increase score_steps or noise_level."
    )
    return [Caution("conservativity", sampler.accept_above, text)]


CLUSTERS, ROWS_PER_CLUSTER = 5, 20  # number of clusters, fewer where there are few rows
MAX_ROWS = 500  # of which log p is computed in both ways


def weights_known_to(score: ScoreFit, held_out: Tensor) -> float:
    """Return the error of the logarithm of a weight: how differently two estimates of log p weigh clusters of rows.

    The probability flow and the integral along the noise axis agree on log p where the score is right; the standard
    deviation over clusters of their difference is what the weights of modes are known to.
    """
    from sklearn.cluster import KMeans

    some = held_out[:MAX_ROWS]
    u = score.coordinates.inverse(some).flatten(1).double().numpy()
    count = min(CLUSTERS, max(1, len(held_out) // ROWS_PER_CLUSTER))
    labels = torch.from_numpy(KMeans(count, n_init=4, random_state=0).fit_predict(u))
    with torch.inference_mode():
        differ = (diffusion.flow_log_density(score, some) - diffusion.log_density(score, some)).double()
    parts = [differ[labels == k] for k in range(count)]
    weights = torch.tensor([len(part) / len(some) for part in parts], dtype=torch.float64)
    medians = torch.stack([part.median() for part in parts])
    return math.sqrt(float(weights @ (medians - weights @ medians).square()))


USUAL_SCORE_STEPS = 8000  # those of `ScoreMH`
CONNECTING_LEVEL = 1.0  # noise level, in standard deviations, at which modes of a table are connected
FALLING_SHARE = 0.1  # of all that a held-out loss fell; a larger one over the last half of training is still falling
MIN_CHECKS = 4  # of a held-out loss; with fewer, nobody knows whether it still fell
LEAKS = frozenset({"range", "density", "clusters"})  # checks that fail where chains are in the wrong places


def advice(sampler: Sampler, checks: Sequence[Check], rows: int) -> str:
    """Return what to change in a fit, with a value; more steps of a chain are no remedy for a wrong score."""
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    made, allowed = int(sampler.score.history["step"][-1]), sampler.score.recipe.steps
    if made == allowed and made < USUAL_SCORE_STEPS:
        return f"Fit with score_steps={USUAL_SCORE_STEPS}."
    bad = worst(checks)
    if bad is not None and bad.name == "copies":
        return f"Fit with score_steps={max(1, made // 2)}: draws repeat rows that were learned from."
    if bad is not None and bad.name in LEAKS and sampler.noise_level < CONNECTING_LEVEL:
        return f"Fit with noise_level={CONNECTING_LEVEL}."
    if still_falling(sampler.score):
        return f"Fit with score_steps={2 * allowed}: the held-out loss was still falling."
    return f"Fit with about {4 * rows:,} rows: the held-out loss no longer fell, and more steps would not help."


def still_falling(score: ScoreFit) -> bool:
    """Return whether the held-out loss still fell when training ended at its limit of steps, or nobody knows.

    It fell over the last half of the training, by more than a share of all that it fell and by more than it rose
    between checks; or there were too few checks to tell.
    """
    held_out = np.array(score.history["held_out"])
    if score.history["step"][-1] < score.recipe.steps:
        return False  # training stopped early
    if len(held_out) < MIN_CHECKS:
        return True
    late = held_out[len(held_out) // 2 - 1 :]
    rises = np.diff(late).clip(min=0).sum()
    return bool(late[0] - late[-1] > max(rises, FALLING_SHARE * (held_out[0] - held_out.min())))


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
    """Return the contents of the report of an estimator."""
    own, source = sampler_name(model), source or Source()
    columns = model.table_.names
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
    """Return the name of an estimator's sampler: Score MALA (potential), ULA."""
    name = acceptance_name(model.sampler_.acceptance)
    return "ULA" if name == "always" else f"Score {PROPOSALS[model.sampler_.proposal]} ({name})"


def _numbers(model: "ScoreMH") -> str:
    """Return the numbers of the diagnosis that no check shows."""
    found = model.diagnose().numbers()
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in found.items())


def _warnings(model: "ScoreMH", chains: Chains, evaluation: Evaluation | None) -> list[Caution]:
    """Return the cautions of the fit, of these chains, and of the evaluation; R-hat decides nothing on their ends."""
    found = [one for one in (*model.diagnose().warnings, *diagnostics.summary(chains).warnings) if one.kind != "r_hat"]
    return [*found, *([] if evaluation is None else evaluation.warnings)]

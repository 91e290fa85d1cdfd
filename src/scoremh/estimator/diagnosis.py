"""The diagnosis of a fit: a verdict, the checks behind it, numbers of the fit, and cautions.

An estimator draws rows as the last draws of independent chains, so the verdict compares these with held-out rows. ESS
and R-hat describe how fast the kernel forgets the start that annealing gave it; the verdict does not depend on them.

`diagnose` returns a `Diagnosis`. `find_adjustment` finds the noise levels at which an accept step is meaningful,
`weights_known_to` estimates how accurately the weights of modes are known, `advice` suggests the next step for a fit
that is not good, and `model_contents` collects the contents of a report.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scoremh import annealing, diagnostics, diffusion
from scoremh._shared import checks
from scoremh.acceptance import Always, LineIntegral, Rule
from scoremh.balance_matching import AcceptanceFit
from scoremh.diagnostics import MAX_CIRCULATION, Caution, conservativity_by_level, lowest_conservative_level
from scoremh.estimator.frames import ColumnLayout
from scoremh.estimator.table import UNITS, Missing, date_text
from scoremh.evaluation import (
    MIN_ROWS,
    ONLY_COLUMN,
    Agreement,
    Check,
    Evaluation,
    Verdict,
    agreement,
    evaluate,
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
from scoremh.score_matching import ScoreFit, implicit_losses, recipe_for
from scoremh.training import versions

if TYPE_CHECKING:
    from scoremh.estimator.model import ScoreMH


RULES: Mapping[str, Rule] = {
    "simpson": LineIntegral("simpson"),
    "exact": LineIntegral("exact"),
    "always": Always(),
}


def acceptance_name(acceptance: Rule | AcceptanceFit | None) -> str:
    """Return the name of a rule, or of the form of a learned acceptance."""
    if isinstance(acceptance, AcceptanceFit):
        return type(acceptance.net).__name__.lower()
    return next(name for name, rule in RULES.items() if rule == acceptance)


MAX_BALANCE_RESIDUAL, MIN_ACCEPTANCE_RATE = 0.5, 0.05  # limits beyond which a caution is given
MAX_WEIGHED_COLUMNS = 64  # with more columns, log p of rows costs more than the fit
MAX_WEIGHT_ERROR = 0.25
MAX_DENSITIES = 1000  # draws and rows whose log p is compared
UNTESTED = Verdict("usable", "not tested")


@dataclass(frozen=True)
class Diagnosis:
    """Results of the checks that `fit` makes; prints verdict, checks, numbers and cautions.

    Args:
        held_out_loss: Implicit score-matching loss on held-out rows; lower is better, and it may be negative.
        conservativity: Asymmetry of the score's Jacobian at the kernel's noise level; 0 for a gradient.
        balance_residual: Root mean square error, in log units, of the detailed balance of a learned acceptance.
        acceptance_rate: Share of the last kernel's moves that were accepted.
        ess: Effective sample size of all steps of the last kernel together, smallest over the coordinates; None for
            short chains.
        r_hat: R-hat of these steps, largest over the coordinates; None for short chains. Rows that are drawn are ends
            of independent chains, whose quality R-hat does not measure.
        weights_known_to: Relative error of the weights of modes, from two estimates of log p by the same score.
        noticed_shift: Shift of one column, in standard deviations, that the checks would detect.
        verdict: Good, usable, or do not use, with a reason and advice.
        checks: Checks of draws against rows.
        warnings: Further cautions about this fit.
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

    @property
    def brief(self) -> str:
        """The verdict, the checks, and the cautions that need no knowledge of the sampler."""
        table = [text_table(self.checks)] if self.checks else []
        return "\n".join([str(self.verdict), *table, *map(str, self.readable)])

    @property
    def readable(self) -> list[Caution]:
        """The cautions that need no knowledge of the sampler."""
        return [one for one in self.warnings if one.kind == "dependent_columns"]

    def _repr_html_(self) -> str:
        """Return the same as HTML, for a notebook."""
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
        """Return the diagnosis of a record that `dataclasses.asdict` returned.

        Args:
            record: Fields by name, as read from JSON.
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
    checked = check_draws(sampler, chains.last, rows, len(held_out), columns, numbers, generator)
    found = replace(found, verdict=checked.verdict, checks=checked.checks, noticed_shift=checked.noticed_shift)
    return replace(found, warnings=(*_cautions(found), *adjustment_cautions(sampler)))


class DrawsVerdict(NamedTuple):
    """The verdict on draws and the checks behind it."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()
    noticed_shift: float | None = None


def check_draws(
    sampler: Sampler,
    draws: Tensor,
    rows: Tensor,
    held: int,
    columns: Sequence[str],
    numbers: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> DrawsVerdict:
    """Return the verdict on draws; the first `held` of the rows are held out, the others are training rows."""
    lost = int((~draws.flatten(1).isfinite().all(1)).sum())
    if lost:
        reason = f"{lost:,} of {len(draws):,} draws are not finite; the limit is 0"
        return DrawsVerdict(Verdict("do not use", reason, advice(sampler, (), len(rows))))
    if held < MIN_ROWS:
        reason = f"only {held} rows were held out, and {MIN_ROWS} are needed to test the draws"
        return DrawsVerdict(Verdict("undecided", reason, f"Fit with at least {10 * MIN_ROWS} rows."))
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
    return DrawsVerdict(_verdict(sampler, found, len(rows), held), found.checks, found.noticed_shift)


def _verdict(sampler: Sampler, checked: Agreement, rows: int, held: int) -> Verdict:
    """Return the verdict of the checks, with advice for this fit."""
    result = advised(verdict(checked), sampler, checked.checks, rows)
    return replace(result, against="held-out and training rows" if rows > held else "held-out rows")


def evaluate_model(
    model: "ScoreMH", draws: Tensor, rows: Tensor, name: str, *, points: int, seed: int = 0, progress: bool = False
) -> Evaluation:
    """Return the evaluation of draws of an estimator against rows of numbers, by the checks that `fit` makes.

    The check for copies of training rows, which are not kept, is that of the fit.
    """
    _require_same_coding(model, rows, name)
    densities = None
    if model.table_.width <= MAX_WEIGHED_COLUMNS // 2:
        random = torch.Generator().manual_seed(seed)
        some = rows[torch.randperm(len(rows), generator=random)[:MAX_DENSITIES]]
        parts = (model.log_densities(part.numpy()) for part in (draws[:MAX_DENSITIES], some))
        first, second = map(torch.from_numpy, parts)
        densities = (first, second) if bool(second.isfinite().any()) else None
    found = evaluate(
        draws,
        rows,
        points=points,
        seed=seed,
        columns=model.table_.names,
        name=name,
        log_densities=densities,
        progress=progress,
    )
    copies = [check for check in model.diagnosis_.checks if check.name == "copies"]
    said = found.verdict
    assert said is not None
    bad = worst(copies)
    if bad is not None and said.level in ("good", "undecided"):
        limit = bad.usable if bad.level == "do not use" else bad.good
        said = replace(said, level=bad.level, reason=f"{bad.text}; the limit of {bad.name} is {number(limit)}")
    checked = (*found.checks, *copies)
    return replace(found, checks=checked, verdict=advised(said, model.sampler_, checked, len(rows)))


def _require_same_coding(model: "ScoreMH", rows: Tensor, name: str) -> None:
    """Raise an error for a column whose range does not meet that of the held-out rows: it has another coding."""
    for j, column in enumerate(model.table_.names):
        ends = []
        for values in (model.held_out_[:, j], rows[:, j].numpy()):
            there = values[~np.isnan(values)]
            ends.append((float(there.min()), float(there.max())) if len(there) else None)
        if None in ends or len(model.held_out_) < MIN_ROWS:
            continue
        (low, high), (first, last) = ends  # type: ignore[misc]
        if first > high or last < low:
            layout = None if model.layout_ is None else model.layout_[j]
            text = [f"{end:g}" if layout is None else layout.text(end) for end in (low, high, first, last)]
            expected = f"{name} with column {column!r} coded as in the fit, {text[0]} to {text[1]}"
            raise ValueError(
                checks.message(expected, f"{text[2]} to {text[3]}", "Pass rows in the same units and codes.")
            )


def _finite(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None


def _cautions(found: Diagnosis) -> list[Caution]:
    cautions = []
    if found.weights_known_to is not None and found.weights_known_to > MAX_WEIGHT_ERROR:
        text = (
            f"Weights of modes are known to +- {100 * found.weights_known_to:.0f} %: two estimates of log p from the "
            "same score differ by that much."
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


MAX_CIRCULATION_ROWS = 500  # rows at which the circulation is measured


def find_adjustment(sampler: Sampler, rows: Tensor, *, generator: torch.Generator | None = None) -> Sampler:
    """Return the sampler with an accept step only at the noise levels at which its score has little circulation."""
    low, high = sampler.noise_range
    levels, step = annealing.karras(high, low, ANNEALING_LEVELS), math.sqrt(2 * ANNEALING_STEP_SIZE)
    u = sampler.score.coordinates.inverse(rows[:MAX_CIRCULATION_ROWS])
    found = conservativity_by_level(sampler.score.standard.at, levels, u, step=step, generator=generator)
    lowest = lowest_conservative_level(found)
    return replace(sampler, accept_above=0.0 if lowest == levels[-1] else lowest)


def adjustment_line(sampler: Sampler) -> str:
    """Describe, for a report, the noise levels at which annealing has an accept step."""
    if isinstance(sampler.acceptance, Always):
        return "none"
    limit = f"{MAX_CIRCULATION:g} nats around a triangle of the size of a step"
    if sampler.accept_above == 0:
        return f"at every noise level: log p returns within {limit}"
    return f"at noise levels from {sampler.accept_above:.3g} up: below, log p fails to return within {limit}"


def adjustment_cautions(sampler: Sampler) -> list[Caution]:
    """Return a caution if the kernel integrates the score at a noise level at which it is not conservative."""
    if sampler.noise_level >= sampler.accept_above or not isinstance(sampler.rule, LineIntegral):
        return []
    text = (
        f"At the kernel's noise level {sampler.noise_level:.3g} the accept step is unreliable: the integral of the "
        f"score depends on the path by more than {MAX_CIRCULATION:g} nats. Increase score_steps or noise_level."
    )
    return [Caution("conservativity", sampler.accept_above, text)]


CLUSTERS, ROWS_PER_CLUSTER = 5, 20  # largest number of clusters, smallest number of rows in each on average
MAX_ROWS = 500  # rows whose log p is computed in both ways


def weights_known_to(score: ScoreFit, held_out: Tensor) -> float:
    """Return the error of a mode's log weight: the difference of two estimates of log p between clusters of rows.

    If the score is right, the probability flow and the integral along the noise axis give the same log p. The error is
    the standard deviation over clusters of the median difference.
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


CONNECTING_LEVEL = 1.0  # noise level, in standard deviations, at which modes of a table are connected
FALLING_SHARE = 0.1  # share of the total fall of the held-out loss; a larger fall in the last half is not converged
MIN_CHECKS = 4  # smallest number of held-out losses from which convergence can be seen
LEAKS = frozenset({"range", "density", "clusters"})  # checks that fail if chains are in wrong regions


def advised(said: Verdict, sampler: Sampler, checks: Sequence[Check], rows: int) -> Verdict:
    """Return the verdict with advice for a fit; a question about a column stays unless the fit was brief."""
    if said.level not in ("usable", "do not use"):
        return said
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    asks = said.reason.startswith(ONLY_COLUMN) and not is_brief(sampler.score, rows)
    return said if asks else replace(said, advice=advice(sampler, checks, rows))


def is_brief(score: ScoreFit, rows: int) -> bool:
    """Return whether training was given fewer steps than usual; the steps that `fit` chooses have no patience."""
    return score.recipe.patience is not None and score.recipe.steps < recipe_for(rows).steps


def advice(sampler: Sampler, checks: Sequence[Check], rows: int) -> str:
    """Return which parameter of a fit to change, with a value; more chain steps would not mend a wrong score."""
    assert isinstance(sampler.score, ScoreFit)  # the estimator has learned it
    made, allowed = int(sampler.score.history["step"][-1]), sampler.score.recipe.steps
    if is_brief(sampler.score, rows):
        return f"Leave score_steps out: {allowed:,} training steps are fewer than usual."
    bad = worst(checks)
    if bad is not None and bad.name == "copies":
        return f"Fit with score_steps={max(1, made // 2)}: draws are copies of training rows."
    if bad is not None and bad.name in LEAKS and sampler.noise_level < CONNECTING_LEVEL:
        return f"Fit with noise_level={CONNECTING_LEVEL}."
    if still_falling(sampler.score):
        return f"Fit with score_steps={2 * allowed}: the held-out loss was still falling."
    if overfits(sampler.score):
        return f"Fit with about {4 * rows:,} rows: the held-out loss rose again while the training loss fell."
    return "Look at the columns that differ most in the report: a wrong kind of a column is the usual cause."


def overfits(score: ScoreFit) -> bool:
    """Return whether the held-out loss rose again, by `FALLING_SHARE` of its total fall: more rows would help."""
    held_out = score.history["held_out"]
    return bool(held_out[-1] - min(held_out) > FALLING_SHARE * (held_out[0] - min(held_out)))


def still_falling(score: ScoreFit) -> bool:
    """Return whether the held-out loss was still falling when training reached its limit of steps.

    It was if over the last half of the training it fell by more than `FALLING_SHARE` of its total fall and by more
    than the sum of its rises. With too few checks the result is True.
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
    """The origin of a fit, for the head of its report.

    Args:
        command: Command that made the fit.
        data: Name of the data.
        rows: Number of rows of the data; None if unknown.
        versions: Versions of the libraries that made the fit.
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
    own, source = "draws", source or Source()
    columns = model.table_.names
    count = "" if source.rows is None else f", {source.rows:,} rows of {len(columns)} columns"
    histories = {"score": model.score_.history}
    if model.acceptance_ is not None:
        histories["acceptance"] = model.acceptance_.history
    texts, places = _texts(model)
    shown = replace(chains, draws=_with_places(chains.draws, places))
    others = samples or {own: chains.last}
    return Contents(
        title=f"Draws of {Path(source.data).name}",
        about={
            "command": source.command,
            "data": f"{source.data}{count}",
            "shown beside the draws": f"{len(rows):,} {rows_name}",
            "sampler": f"{sampler_name(model)}, step {model.step_size_:.3g}, {model.chain_steps} steps a chain",
            "accept step while annealing": adjustment_line(model.sampler_),
            "chains": chains_line(chains),
            "numbers of the fit": _numbers(model),
            "cautions for experts": _expert_cautions(model, shown),
            "distances": distances_line(evaluation, rows),
            "versions": ", ".join(f"{name} {version}" for name, version in source.versions.items()),
        },
        columns=columns,
        data=_with_places(rows, places),
        samples={name: _with_places(x, places) for name, x in others.items()},
        chains=shown,
        histories=histories,
        metrics=metrics_table(evaluation, own),
        floors={} if evaluation is None else evaluation.floors,
        warnings=_warnings(model, evaluation),
        data_name=f"the {rows_name}",
        verdict=model.diagnose().verdict if evaluation is None else evaluation.verdict,
        checks=model.diagnose().checks if evaluation is None else evaluation.checks,
        texts=texts,
    )


MIN_DAYS = 10  # that a column of dates spans, from which the axes have no times of day
GAP = 0.15  # from the smallest value to the place of missing values on an axis, over the range


def _texts(model: "ScoreMH") -> tuple[dict[str, Callable[[float], str]], list[float | None]]:
    """Return functions that write numbers of columns as text, and the place of missing values in every column."""
    texts: dict[str, Callable[[float], str]] = {}
    places: list[float | None] = []
    for j, (name, column) in enumerate(zip(model.table_.names, model.table_.columns, strict=True)):
        layout = None if model.layout_ is None else model.layout_[j]
        values = model.held_out_[:, j]
        there = values[~np.isnan(values)]
        place = None
        if isinstance(column, Missing):
            low, high = (float(there.min()), float(there.max())) if len(there) else (column.present, column.present)
            place = low - max(GAP * (high - low), 1.0 if layout is not None and layout.levels else 1e-9)
        places.append(place)
        is_text = layout is not None and (layout.levels is not None or layout.date is not None)
        if is_text or place is not None:
            long = len(there) > 0 and float(np.ptp(there)) > MIN_DAYS * UNITS[0]
            whole_days = layout is not None and layout.date is not None and long
            texts[name] = partial(_text, layout=layout, place=place, is_text=is_text, whole_days=whole_days)
    return texts, places


def _text(value: float, *, layout: ColumnLayout | None, place: float | None, is_text: bool, whole_days: bool) -> str:
    if place is not None and value <= place + 1e-9 * abs(place):
        return "missing"
    if whole_days:
        return date_text(value, whole_days=True)
    return layout.text(value) if is_text and layout is not None else number(value)


def _with_places(x: Tensor, places: Sequence[float | None]) -> Tensor:
    """Return samples `(..., column)` with missing values at their places."""
    found = x
    for j, place in enumerate(places):
        if place is not None:
            found = found.index_copy(-1, torch.tensor([j]), found[..., [j]].nan_to_num(nan=place, posinf=math.inf))
    return found


def sampler_name(model: "ScoreMH") -> str:
    """Return the name of an estimator's sampler, such as "Score MALA (potential)" or "ULA"."""
    name = acceptance_name(model.sampler_.acceptance)
    return "ULA" if name == "always" else f"Score {PROPOSALS[model.sampler_.proposal]} ({name})"


def _numbers(model: "ScoreMH") -> str:
    """Return the numbers of the diagnosis as text."""
    found = model.diagnose().numbers()
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in found.items())


def _warnings(model: "ScoreMH", evaluation: Evaluation | None) -> list[Caution]:
    """Return the cautions that need no knowledge of the sampler; those of the draws themselves are in the verdict."""
    readable = model.diagnose().readable
    if evaluation is None:
        return readable
    others = dict(list(evaluation.p_values.items())[1:])
    return [*readable, *replace(evaluation, p_values=others).warnings]


def _expert_cautions(model: "ScoreMH", chains: Chains) -> str:
    """Return the cautions for experts, without R-hat, which does not measure the last draws."""
    readable = model.diagnose().readable
    found = (*model.diagnose().warnings, *diagnostics.summary(chains).warnings)
    return " ".join(str(one) for one in found if one.kind != "r_hat" and one not in readable) or "none"

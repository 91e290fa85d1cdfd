"""The diagnosis of a fit, on rows that it has not seen: numbers, and cautions where they are bad."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh import diagnostics, metrics
from scoremh.balance_matching import AcceptanceFit
from scoremh.diagnostics import Caution
from scoremh.diagnostics.cautions import SHORT_CHAINS_R_HAT_LIMIT, mixing_cautions
from scoremh.estimator.adjustment import adjustment_cautions
from scoremh.estimator.mode_weights import ModeWeights, mode_weights
from scoremh.evaluation import MIN_ROWS, P_VALUE_LIMIT
from scoremh.sampler import Sampler
from scoremh.sampling.chains import Chains
from scoremh.score_matching import implicit_losses

MAX_BALANCE_RESIDUAL, MIN_ACCEPTANCE_RATE = 0.5, 0.05  # beyond, there is a caution
MAX_WEIGHED_COLUMNS = 64  # beyond, log p of the held-out rows, in two ways, costs more than the fit
MAX_WEIGHT_ERROR, MAX_CLUSTER_Z = 0.25, 4.0  # of five clusters one has 4 standard errors once in 3,000 good fits


@dataclass(frozen=True)
class Diagnosis:
    """What a fit found when it checked itself; print it for the numbers and the cautions.

    Args:
        held_out_loss: Implicit score-matching loss on held-out rows; lower is better, and it may be negative.
        conservativity: Asymmetry of the score's Jacobian at the kernel's noise level; 0 for a gradient.
        balance_residual: Root mean square error, in log units, of the detailed balance of a learned acceptance.
        acceptance_rate: Share of the last kernel's moves that were accepted.
        ess: Effective sample size of all chains together, smallest over the coordinates; None for short chains.
        r_hat: R-hat, largest over the coordinates; None for short chains.
        p_value: p-value of a two-sample test between draws and held-out rows, in the standard coordinates of the score.
        weights_known_to: Relative error of the weights of modes, by two estimates of log p from the same score.
        cluster_difference: Difference of the share of a cluster among draws and among held-out rows, where it is worst.
        warnings: What a reader should know of this fit.
    """

    held_out_loss: float | None
    conservativity: float | None
    balance_residual: float | None
    acceptance_rate: float
    ess: float | None
    r_hat: float | None
    p_value: float | None
    weights_known_to: float | None = None
    cluster_difference: float | None = None
    warnings: tuple[Caution, ...] = ()

    def __str__(self) -> str:
        """Return a line of numbers, and a line for each caution."""
        numbers = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in self.numbers().items()]
        return "\n".join([", ".join(numbers), *map(str, self.warnings)])

    def numbers(self) -> dict[str, float]:
        """Return the numbers that could be computed, by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, float)}


def diagnose(
    sampler: Sampler, chains: Chains, held_out: Tensor, columns: Sequence[str], *, generator: torch.Generator
) -> Diagnosis:
    """Return the diagnosis of a fit.

    Args:
        sampler: Sampler that was learned.
        chains: Chains that it drew.
        held_out: Rows that it has not seen.
        columns: Names of the columns.
        generator: Random number generator; the same seed gives the same diagnosis.
    """
    table = diagnostics.summary(chains).table
    loss = conservativity = balance = p_value = weights = None
    if len(held_out) >= MIN_ROWS:
        loss = float(implicit_losses(sampler.score, held_out).mean())
        blurred, score = sampler.blur(held_out, generator=generator), sampler.target.score
        assert score is not None
        conservativity = diagnostics.conservativity(score, blurred, generator=generator).asymmetry
        standard = [sampler.score.coordinates.inverse(rows) for rows in (chains.last, held_out)]
        p_value = metrics.two_sample_test(*standard, generator=generator).p_value
        if held_out[0].numel() <= MAX_WEIGHED_COLUMNS:
            weights = mode_weights(sampler.score, chains.last, held_out)
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
        p_value,
        *(weights[:2] if weights is not None else ()),
    )
    cautions = _cautions(found, len(held_out)) + _weight_cautions(weights) + adjustment_cautions(sampler)
    return replace(found, warnings=(*chain_cautions(table["r_hat"], columns), *cautions))


def _weight_cautions(weights: ModeWeights | None) -> list[Caution]:
    """Return cautions where the weights of modes are not known, or not those of the held-out rows."""
    cautions = []
    if weights is not None and weights.known_to > MAX_WEIGHT_ERROR:
        text = (
            f"Weights of modes known to +- {100 * weights.known_to:.0f} %: two estimates of log p from the same score "
            "differ by that much. Increase score_steps, or provide more rows."
        )
        cautions.append(Caution("weights_known_to", weights.known_to, text))
    if weights is not None and weights.z > MAX_CLUSTER_Z:
        text = (
            f"A cluster of the held-out rows has a share that differs by {weights.difference:.2g} among the draws, "
            f"{weights.z:.1f} standard errors. Increase chain_steps or noise_level, and compare in a report."
        )
        cautions.append(Caution("cluster_difference", weights.difference, text))
    return cautions


def _finite(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None


def chain_cautions(r_hat: NDArray[np.float64], columns: Sequence[str]) -> list[Caution]:
    """Return a caution where the chains of an estimator have not mixed, or where that is unknown.

    Args:
        r_hat: R-hat of each column.
        columns: Names of the columns.
    """
    if not np.isfinite(r_hat).all():
        text = "Whether the chains have mixed is unknown: R-hat needs chains of four draws that move."
        return [Caution("r_hat", None, text)]
    advice = (
        "the weights of the modes still depend on where annealing left the chains. Increase chain_steps or noise_level."
    )
    return mixing_cautions(r_hat, columns, limit=SHORT_CHAINS_R_HAT_LIMIT, advice=advice)


def _cautions(found: Diagnosis, held_out: int) -> list[Caution]:
    cautions = []
    if found.p_value is None:
        text = f"Only {held_out} rows were held out: whether draws are like the data was not tested. Provide more rows."
        cautions.append(Caution("held_out_rows", float(held_out), text))
    elif found.p_value < P_VALUE_LIMIT:
        text = (
            f"Two-sample p-value {found.p_value:.3g}: draws can be told apart from held-out rows. "
            "Increase score_steps, provide more rows, or see where they differ in a report."
        )
        cautions.append(Caution("p_value", found.p_value, text))
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

"""What a fit finds out about itself, on rows that it has not seen, in numbers and in words."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoremh import diagnostics, metrics
from scoremh.estimator.sampler import Sampler
from scoremh.sampling.chains import Chains
from scoremh.score_matching import implicit_losses

FEW = 20  # rows, below which nothing can be said
P_VALUE, BALANCE, ACCEPTED = 0.01, 0.5, 0.05  # beyond these a reader is told
R_HAT = 1.05  # ten effective draws of each of many short chains; for a few long ones 1.01 is usual


@dataclass(frozen=True)
class Diagnosis:
    """What a fit found out about itself. Printing it says it in words.

    Args:
        held_out_loss: Implicit score-matching loss on held-out rows; the lower the better, and it may be negative.
        conservativity: Asymmetry of the score's Jacobian, at the kernel's noise; 0 for a gradient.
        balance_residual: Root mean square, in log units, of what a learned acceptance lacks for detailed balance.
        acceptance_rate: Share of the last kernel's moves that were accepted.
        ess: Effective draws of all chains together, in the coordinate with the fewest; None for chains of few steps.
        r_hat: Of the coordinate where it is largest; None for chains of few steps.
        p_value: Of a two-sample test between draws and held-out rows.
        warnings: What a reader should know, in words.
    """

    held_out_loss: float | None
    conservativity: float | None
    balance_residual: float | None
    acceptance_rate: float
    ess: float | None
    r_hat: float | None
    p_value: float | None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in a few lines."""
        numbers = [f"{name.replace('_', ' ')} {value:.3g}" for name, value in self.numbers().items()]
        return "\n".join([", ".join(numbers), *self.warnings])

    def numbers(self) -> dict[str, float]:
        """Return the numbers that there are, by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, float)}


def diagnose(
    sampler: Sampler, chains: Chains, held: Tensor, columns: Sequence[str], *, generator: torch.Generator
) -> Diagnosis:
    """Judge a fit.

    Args:
        sampler: What was learned.
        chains: That it made.
        held: Rows that it has not seen.
        columns: Their names.
        generator: Source of randomness.
    """
    table, enough = diagnostics.summary(chains).table, len(held) >= FEW
    loss = conservativity = balance = p_value = None
    if enough:
        loss = float(implicit_losses(sampler.score, held).mean())
        blurred, score = sampler.blurred(held, generator), sampler.target.score
        assert score is not None
        conservativity = diagnostics.conservativity(score, blurred, generator=generator).asymmetry
        p_value = metrics.two_sample_test(chains.last, held, generator=generator).p_value
        if sampler.learned is not None:
            residual = diagnostics.balance_residual(
                sampler.learned, sampler.target, sampler.proposed(sampler.step), blurred, groups=1, generator=generator
            )
            balance = residual.integral.rms
    found = Diagnosis(
        loss,
        conservativity,
        balance,
        chains.acceptance_rate,
        _finite(table["ess_bulk"].min()),
        _finite(table["r_hat"].max()),
        p_value,
    )
    return replace(found, warnings=(*mixing(table["r_hat"], columns), *_warnings(found, len(held))))


def _finite(value: np.float64) -> float | None:
    return float(value) if np.isfinite(value) else None


def mixing(r_hat: NDArray[np.float64], columns: Sequence[str]) -> list[str]:
    """Say, where it is so, that chains have not mixed, and in which column least.

    Args:
        r_hat: One per column.
        columns: Their names.
    """
    if not np.isfinite(r_hat).all():
        return ["Whether the chains have mixed is not known: R-hat needs chains of four draws that move."]
    if r_hat.max() <= R_HAT:
        return []
    return [
        f"R-hat {r_hat.max():.3g} on {columns[int(r_hat.argmax())]}: the chains have not mixed; how often each region "
        "is drawn still depends on where the annealing left them. Raise chain_steps, or noise."
    ]


def _warnings(found: Diagnosis, held: int) -> list[str]:
    said = []
    if found.p_value is None:
        said.append(f"Only {held} rows were held out: whether draws are like the data was not tested. Bring more rows.")
    elif found.p_value < P_VALUE:
        said.append(
            f"Two-sample p-value {found.p_value:.3g}: draws can be told from held-out rows. Train longer "
            "(score_steps), bring more rows, or look where they differ."
        )
    if found.balance_residual is not None and found.balance_residual > BALANCE:
        said.append(
            f"Balance residual {found.balance_residual:.2g}: the learned acceptance is off by that much in log units. "
            'Train it longer (acceptance_steps), or use acceptance="simpson".'
        )
    if found.acceptance_rate < ACCEPTED:
        said.append(f"Acceptance rate {found.acceptance_rate:.2g}: the last kernel hardly moves.")
    return said

"""Summary of a run: ArviZ's convergence statistics, acceptance, cost in score calls, and cautions.

A caution is a sentence about a result, with the number behind it. The R-hat of chains that have mixed, each with m
effective draws, is about sqrt(1 + 1 / m); the two limits follow from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scoremh._shared import checks

R_HAT_LIMIT = 1.01  # for a few long chains, with 50 effective draws each: Vehtari et al. (2021)
# share of clipped factors: on a lattice of modes, exact rules failed `stationarity` from 7 % on and passed up to 6 %
CLIPPED_LIMIT = 0.05
MAX_LONGER = 100  # times as long, beyond which more draws are no advice
SHORT_CHAINS_R_HAT_LIMIT = 1.05  # for many short chains, with 10 effective draws each

CautionKind = Literal[
    "r_hat",
    "nonfinite",
    "p_value",
    "held_out_rows",
    "balance_residual",
    "acceptance_rate",
    "dependent_columns",
    "weights_known_to",
    "cluster_difference",
    "conservativity",
    "clipped",
    "unadjusted",
]


@dataclass(frozen=True)
class Caution:
    """A warning about a result; prints as its text.

    Args:
        kind: Subject of the caution.
        value: The number that caused it; None if it could not be computed.
        text: The sentence, with advice.
    """

    kind: CautionKind
    value: float | None
    text: str

    def __str__(self) -> str:
        return self.text


def mixing_cautions(r_hat: NDArray[np.float64], names: Sequence[str], *, limit: float, advice: str) -> list[Caution]:
    """Return a caution about the coordinate with the largest R-hat, if that exceeds the limit."""
    worst = int(np.nanargmax(r_hat))
    value = float(r_hat[worst])
    if value <= limit:
        return []
    return [Caution("r_hat", value, f"R-hat {value:.3g} on {names[worst]}: the chains have not mixed; {advice}")]


ROWS_SHOWN = 12


@runtime_checkable
class Record(Protocol):
    """The interface that `summary` needs; `Chains` has it."""

    @property
    def draws(self) -> Tensor:
        """The kept positions, `(chain, draw, *event)`."""
        ...

    @property
    def acceptance_rate(self) -> float:
        """Share of transitions accepted."""
        ...

    @property
    def description(self) -> str:
        """Text that describes the kernel."""
        ...

    @property
    def nonfinite(self) -> Tensor:
        """Number of rejections because a value was not finite, `(chain, draw)`."""
        ...

    @property
    def outside(self) -> Tensor:
        """Number of rejections because p is 0 at the candidate, `(chain, draw)`."""
        ...

    @property
    def score_calls(self) -> int:
        """Points at which the score was evaluated."""
        ...

    @property
    def factors(self) -> int:
        """Number of random factors drawn by a randomised rule."""
        ...

    @property
    def clipped(self) -> int:
        """Number of factors that were clipped to their bound."""
        ...


@dataclass(frozen=True, eq=False)
class Summary:
    """Statistics of a run; prints as a table.

    Args:
        table: Arrays of the event's shape by statistic: mean, sd, mcse_mean, ess_bulk, ess_tail, r_hat.
        acceptance_rate: Share of transitions accepted.
        diverging: Transitions rejected because a value was not finite or a trajectory diverged (ArviZ's name).
        outside: Transitions rejected because p is 0 at the candidate.
        score_calls: Points at which the score was evaluated.
        ess_per_score_call: The smallest ess_bulk over the coordinates, per score call.
        warnings: Cautions about these numbers.
        factors: Number of random factors drawn by a randomised rule.
        clipped: Number of factors that were clipped to their bound.
    """

    table: dict[str, NDArray[np.float64]]
    acceptance_rate: float
    diverging: int
    outside: int
    score_calls: int
    ess_per_score_call: float
    warnings: list[Caution] = field(default_factory=list)
    factors: int = 0
    clipped: int = 0

    def __str__(self) -> str:
        """Return the table; of many coordinates, those with the fewest effective draws."""
        from rich.console import Console  # here, so that `import scoremh` stays light
        from rich.table import Table

        names = list(self.table)
        columns = np.stack([self.table[name].ravel() for name in names], 1)
        order = np.arange(len(columns))
        if len(columns) > ROWS_SHOWN:
            order = np.argsort(self.table["ess_bulk"].ravel())[:ROWS_SHOWN]
        shape = self.table["mean"].shape
        table = Table(title=f"{len(order)} of {len(columns)} coordinates" if len(order) < len(columns) else None)
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right")
        for row in order:
            place = ", ".join(str(i) for i in np.unravel_index(row, shape))
            table.add_row(
                f"x[{place}]", *(_format(name, value) for name, value in zip(names, columns[row], strict=True))
            )
        console = Console(width=100, record=False)
        with console.capture() as capture:
            console.print(table)
        cost = f"{self.score_calls:,} score calls, {self.ess_per_score_call:.3g} effective draws per call"
        lost = f"{self.diverging:,} diverging or not finite, {self.outside:,} outside the support"
        if self.factors:
            lost += f"; clipped {self.clipped / self.factors:.2%} of {self.factors:,} factors"
        return "\n".join(
            [capture.get().rstrip(), f"acceptance {self.acceptance_rate:.3f}; {lost}", cost, *map(str, self.warnings)]
        )


def summary(chains: Record) -> Summary:
    """Summarise a run: ESS, R-hat and MCSE by ArviZ, acceptance, rejections by cause, and cost in score calls."""
    from arviz_stats.base.array import array_stats

    checks.events(chains.draws, "chains.draws", finite=False)
    x = chains.draws.double().cpu().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # R-hat of a constant column is NaN
        table: dict[str, NDArray[np.float64]] = {
            "mean": x.mean((0, 1)),
            "sd": x.std((0, 1)),
            "mcse_mean": np.asarray(array_stats.mcse(x, chain_axis=0, draw_axis=1, method="mean")),
            "ess_bulk": np.asarray(array_stats.ess(x, chain_axis=0, draw_axis=1, method="bulk")),
            "ess_tail": np.asarray(array_stats.ess(x, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))),
            "r_hat": np.asarray(array_stats.rhat(x, chain_axis=0, draw_axis=1)),
        }
    fewest = float(np.min(table["ess_bulk"]))
    return Summary(
        table,
        chains.acceptance_rate,
        int(chains.nonfinite.sum()),
        int(chains.outside.sum()),
        chains.score_calls,
        fewest / chains.score_calls if chains.score_calls else float("nan"),
        [
            *_warnings(table, x.shape[:2], chains.nonfinite),
            *_clipping(chains.clipped, chains.factors),
            *_unadjusted(chains.description),
        ],
        chains.factors,
        chains.clipped,
    )


def _warnings(table: dict[str, NDArray[np.float64]], shape: tuple[int, int], nonfinite: Tensor) -> list[Caution]:
    cautions, r_hat = [], table["r_hat"]
    if np.isnan(r_hat).all():
        text = f"R-hat and ESS need at least 2 moving chains of 4 draws; there are {shape[0]} chains of {shape[1]}."
        cautions.append(Caution("r_hat", None, text))
    else:
        names = [f"x[{', '.join(map(str, place))}]" for place in np.ndindex(r_hat.shape)]
        cautions += mixing_cautions(r_hat.ravel(), names, limit=R_HAT_LIMIT, advice=_longer(float(np.nanmax(r_hat))))
    if nonfinite.any():
        stuck = int((nonfinite > 0).any(1).sum())
        text = f"{stuck} of {shape[0]} chains diverged, or rejected moves because a score or ratio was not finite."
        cautions.append(Caution("nonfinite", float(stuck), text))
    return cautions


def _longer(r_hat: float) -> str:
    """Return how much longer a run has to be: chains with m effective draws each have R-hat near sqrt(1 + 1 / m)."""
    factor = (r_hat**2 - 1) / (R_HAT_LIMIT**2 - 1)
    if not factor < MAX_LONGER:
        return "call warmup for a step size, a covariance and points to start from, or look for modes."
    return f"run {math.ceil(factor)} times as long, or call warmup first for a better step size and covariance."


def _unadjusted(description: str) -> list[Caution]:
    """Return a caution for draws without an accept step, whose effective draws say nothing about their bias."""
    if not description.endswith("with Always()"):
        return []
    text = (
        "No accept step: draws are biased by the step size, which effective draws do not show. Use LineIntegral(), or "
        "Exact() if there is a density."
    )
    return [Caution("unadjusted", None, text)]


def _clipping(clipped: int, factors: int) -> list[Caution]:
    """Return a caution if so many factors of an exact rule were clipped that its decisions are not exact."""
    if clipped <= CLIPPED_LIMIT * factors:
        return []
    text = f"{clipped / factors:.0%} of the factors were clipped: decisions are not exact; use a smaller step size."
    return [Caution("clipped", clipped / factors, text)]


def _format(name: str, value: float) -> str:
    return f"{value:,.0f}" if name.startswith("ess") and np.isfinite(value) else f"{value:.3f}"

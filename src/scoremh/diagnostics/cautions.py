"""Cautions: what a reader of a result should know, with the number that says so, and the limits of R-hat.

Chains that have mixed, each with m effective draws, have R-hat near sqrt(1 + 1 / m).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

R_HAT_LIMIT = 1.01  # of a few long chains, 50 effective draws each: Vehtari et al. (2021)
# of clipped factors: on a lattice of modes exact rules were refused with 7 % and more, and passed with 6 % and less
CLIPPED_LIMIT = 0.05
SHORT_CHAINS_R_HAT_LIMIT = 1.05  # of many short chains: 10 effective draws each

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
]


@dataclass(frozen=True)
class Caution:
    """Something that a reader of a result should know; it prints as its sentence.

    Args:
        kind: What it is about.
        value: The number that caused it; None where that number could not be computed.
        text: The sentence, with what to do.
    """

    kind: CautionKind
    value: float | None
    text: str

    def __str__(self) -> str:
        return self.text


def mixing_cautions(r_hat: NDArray[np.float64], names: Sequence[str], *, limit: float, advice: str) -> list[Caution]:
    """Return a caution that names the coordinate with the largest R-hat; none if that is within the limit.

    Args:
        r_hat: R-hat of each coordinate; those that are not finite are left out.
        names: Names of the coordinates.
        limit: Largest R-hat of chains that have mixed.
        advice: What to do, in the words of the caller's own options.
    """
    worst = int(np.nanargmax(r_hat))
    value = float(r_hat[worst])
    if value <= limit:
        return []
    return [Caution("r_hat", value, f"R-hat {value:.3g} on {names[worst]}: the chains have not mixed; {advice}")]

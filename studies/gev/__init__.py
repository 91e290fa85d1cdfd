"""Heavy tails: GEV(0, 1, xi), the generalised extreme value distribution."""

from studies.gev.adjustment import STUDY as ADJUSTMENT
from studies.gev.learned import STUDY as LEARNED
from studies.gev.tails_page import STUDY as TAILS

__all__ = ["ADJUSTMENT", "LEARNED", "TAILS"]

"""Names by which settings are chosen; here, so that the command line knows them without torch."""

from typing import Literal

ProposalName = Literal["mala", "rw", "pcn", "student"]
AcceptanceName = Literal["potential", "antisymmetric", "free", "simpson", "adaptive", "always"]

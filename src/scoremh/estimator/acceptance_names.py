"""The names by which an estimator chooses its acceptance."""

from collections.abc import Mapping

from scoremh._shared.names import AcceptanceName
from scoremh.acceptance import Always, LineIntegral
from scoremh.balance_matching import AcceptanceFit
from scoremh.types import Acceptance

__all__ = ["RULES", "AcceptanceName", "acceptance_name"]

RULES: Mapping[str, Acceptance] = {
    "simpson": LineIntegral("simpson"),
    "adaptive": LineIntegral("adaptive"),
    "always": Always(),
}


def acceptance_name(acceptance: Acceptance | AcceptanceFit | None) -> str:
    """Return the name of a rule, or of the form of a learned acceptance."""
    if isinstance(acceptance, AcceptanceFit):
        return type(acceptance.net).__name__.lower()
    return next(name for name, rule in RULES.items() if rule == acceptance)

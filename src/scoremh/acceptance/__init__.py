"""Acceptance rules a(x', x); the module `rules` has the table of them, and `exact` how the exact rule decides."""

from scoremh.acceptance.rules import Always, Decision, Exact, Learned, LineIntegral, Rule, Taylor, ThroughNoise

__all__ = [
    "Always",
    "Decision",
    "Exact",
    "Learned",
    "LineIntegral",
    "Rule",
    "Taylor",
    "ThroughNoise",
]

"""Acceptance rules a(x', x): all rules, with a table, in `rules`; exact decisions from scores in `exact`."""

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

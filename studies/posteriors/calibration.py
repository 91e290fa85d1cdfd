r"""Are posterior draws calibrated? Simulation-based calibration (Talts et al. 2018, arXiv:1804.06788).

    theta ~ prior,  data ~ p(data | theta),  theta_1 .. theta_L ~ p(theta | data)

The rank of theta among the L draws is then uniform on 0 .. L in every coordinate, whatever the model. A chi-square test
of the ranks in equal bins gives one p-value per coordinate, and Bonferroni's bound joins them. Ranks in the middle: the
draws are too wide. Ranks at both ends: they are too narrow, or not independent of each other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scoremh._shared import checks, rng

MIN_PER_BIN = 10  # expected ranks in a bin, for which the chi-square distribution is a good approximation
MAX_BINS = 20


@runtime_checkable
class RandomFunction(Protocol):
    """A function of a tensor that draws random numbers."""

    def __call__(self, given: Tensor, /, *, generator: torch.Generator) -> Tensor:
        """Return draws."""
        ...


@dataclass(frozen=True, eq=False)
class Calibration:
    """The verdict on posterior draws.

    Args:
        p_value: Probability of ranks at least this uneven if the draws are right, over all coordinates.
        p_values: The same for every coordinate of the flattened event alone.
        ranks: Number of draws below the true value, `(simulation, coordinate)`.
        draws: Number of posterior draws in every simulation, L.
        false_alarm_rate: Probability with which right draws are rejected.
    """

    p_value: float
    p_values: tuple[float, ...]
    ranks: Int[Tensor, "simulation coordinate"]
    draws: int
    false_alarm_rate: float

    @property
    def passed(self) -> bool:
        """Whether the ranks are compatible with right draws."""
        return self.p_value >= self.false_alarm_rate

    @property
    def worst(self) -> int:
        """The coordinate with the smallest p-value."""
        return self.p_values.index(min(self.p_values))

    def __str__(self) -> str:
        """Return the verdict in a sentence, with how the ranks of the worst coordinate are spread."""
        ranks = self.ranks[:, self.worst].double()
        uniform = math.sqrt(self.draws * (self.draws + 2) / 12)
        verdict = "compatible with" if self.passed else "not"
        return (
            f"ranks are {verdict} uniform: p-value {self.p_value:.3g} ({len(self.ranks)} simulations of {self.draws} "
            f"draws, false-alarm rate {self.false_alarm_rate:g}); in coordinate {self.worst} their mean is "
            f"{float(ranks.mean()):.1f} (uniform: {self.draws / 2:.1f}), their standard deviation "
            f"{float(ranks.std()):.1f} (uniform: {uniform:.1f})"
        )


def calibration(
    sample_prior: Callable[..., Tensor],
    simulate: RandomFunction,
    sample_posterior: RandomFunction,
    *,
    simulations: int = 200,
    false_alarm_rate: float = 0.001,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Test whether posterior draws are right on average over the data that a model simulates.

    Args:
        sample_prior: Function `(n, generator=...)` that draws n parameters from the prior, `(n, *event)`, such as the
            `sample` of a distribution.
        simulate: Function `(parameter, generator=...)` that draws data given one parameter `(*event)`.
        sample_posterior: Function `(data, generator=...)` that returns nearly independent draws from the posterior,
            `(draw, *event)`, as many for all data: for example the last positions of many chains.
        simulations: Number of parameters and data to simulate, at least 50.
        false_alarm_rate: Probability with which right draws are rejected; `passed` compares the p-value with it.
        generator: Random number generator; the same seed gives the same draws.

    Returns:
        Ranks and p-values; printed, a sentence.

    Example:
        >>> from scoremh import targets
        >>> half = targets.Gaussian([0.0], [[0.5]])  # of x ~ N(0, 1) given y ~ N(x, 1), around y / 2
        >>> verdict = calibration(
        ...     targets.Gaussian([0.0]).sample,
        ...     lambda x, generator: x + torch.randn(1, generator=generator),
        ...     lambda y, generator: y / 2 + half.sample(63, generator=generator),
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> verdict.passed
        True
    """
    checks.count(simulations, "simulations", at_least=50)
    checks.positive(false_alarm_rate, "false_alarm_rate")
    device = torch.device("cpu") if generator is None else generator.device
    generator = rng.resolve(generator, device)
    parameters = sample_prior(simulations, generator=generator)
    checks.events(parameters, "the prior's draws")
    if len(parameters) != simulations:
        fix = "Return n parameters."
        raise ValueError(checks.message(f"{simulations} draws of the prior", len(parameters), fix))
    rows: list[Tensor] = []
    draws = 0
    for parameter in parameters:
        found = sample_posterior(simulate(parameter, generator=generator), generator=generator)
        _check_draws(found, parameter, draws)
        draws = len(found)
        rows.append(_ranks(parameter.flatten(), found.flatten(1), generator))
    ranks = torch.stack(rows)
    p_values = tuple(_uniformity(column, draws) for column in ranks.T)
    joint = min(1.0, len(p_values) * min(p_values))
    return Calibration(joint, p_values, ranks, draws, false_alarm_rate)


def _check_draws(found: Tensor, parameter: Tensor, before: int) -> None:
    """Raise an error for posterior draws that are not finite, or whose shape or number is wrong."""
    checks.events(found, "the posterior's draws")
    if found.shape[1:] != parameter.shape:
        expected = f"posterior draws of shape (draw, {', '.join(map(str, parameter.shape))})"
        raise ValueError(checks.message(expected, checks.describe(found), "Return one event a row."))
    if before and len(found) != before:
        fix = "Return as many draws for all data: ranks among different numbers cannot be compared."
        raise ValueError(checks.message(f"{before} posterior draws, as for the data before", len(found), fix))


def _ranks(
    parameter: Float[Tensor, " coordinate"], draws: Float[Tensor, "draw coordinate"], generator: torch.Generator
) -> Int[Tensor, " coordinate"]:
    """Return the number of draws below the parameter; ties, as of discrete numbers, are broken at random."""
    below, tied = (draws < parameter).sum(0), (draws == parameter).sum(0)
    share = rng.uniform(tied.shape, draws.double(), generator)
    return below + (share * (tied + 1)).long().minimum(tied)


def _uniformity(ranks: Tensor, draws: int) -> float:
    """Return the p-value of the chi-square test that ranks are uniform on 0 .. draws."""
    from scipy import stats  # here, so that `import scoremh` stays light

    bins = min(MAX_BINS, draws + 1, len(ranks) // MIN_PER_BIN)
    bin_of = torch.arange(draws + 1) * bins // (draws + 1)
    expected = torch.bincount(bin_of, minlength=bins).double() * len(ranks) / (draws + 1)
    observed = torch.bincount(bin_of[ranks.cpu()], minlength=bins).double()
    statistic = float(((observed - expected).square() / expected).sum())
    return float(stats.chi2.sf(statistic, bins - 1))

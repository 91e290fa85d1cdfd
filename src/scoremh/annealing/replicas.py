"""What `replica_exchange` returns: draws of the lowest level, and how well walkers went up and down."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

GOOD_SWAP_RATES = 0.2, 0.6  # below, walkers hardly pass; above, levels are wasted (Syed et al. 2022: 0.5 is best)


@dataclass(frozen=True, eq=False)
class Replicas:
    """Draws of a distribution by replica exchange. All levels are from high to low.

    Args:
        draws: Draws at the lowest level: those of the distribution.
        last: Last points at every level, to go on from: `initial=found.last`.
        levels: Noise levels.
        swap_rates: Mean acceptance probability of swaps, per pair of neighbours.
        acceptance_rates: Share of the local moves that were accepted, per level.
        round_trips: Number of times that a walker went from the lowest level to the highest and back, per chain.
        nonfinite: Number of swaps that were rejected because their ratio was not finite.
        score_calls: Points at which the score was evaluated, over all chains, levels and sweeps, warm-up included; a
            score with its divergence counts as one for the score and one for every coordinate.
    """

    draws: Float[Tensor, "chain draw *event"]
    last: tuple[Float[Tensor, "chain *event"], ...]
    levels: tuple[float, ...]
    swap_rates: tuple[float, ...]
    acceptance_rates: tuple[float, ...]
    round_trips: Int[Tensor, " chain"]
    nonfinite: int
    score_calls: int

    @property
    def hints(self) -> list[str]:
        """What to change: sentences on swap rates out of bounds and on walkers that do not come around."""
        found, (least, most) = [], GOOD_SWAP_RATES
        rarest, most_frequent = min(self.swap_rates), max(self.swap_rates)
        if rarest < least or most_frequent > most:
            advice = "add levels" if rarest < least else "fewer levels would do"
            span = f"swap rates of {rarest:.2f} to {most_frequent:.2f} lie outside {least} to {most}"
            found.append(f"{span}: {advice}, or place them with annealing.tune_levels")
        if not self.round_trips.any():
            found.append("no walker went from the lowest level to the highest and back: draw more, or add levels")
        if self.nonfinite:
            found.append(f"{self.nonfinite} swaps had a ratio that is not finite: look at the score of the model")
        return found

    def __repr__(self) -> str:
        """Show the shape, the levels, the swap rates, the round trips and the cost, then the hints."""
        chains, draws, *event = self.draws.shape
        swaps, moves = " ".join(f"{rate:.2f}" for rate in self.swap_rates), self.acceptance_rates
        text = (
            f"Replicas({chains} chains x {draws} draws of {tuple(event)}, {len(self.levels)} levels from noise "
            f"{self.levels[0]:.3g} to {self.levels[-1]:.3g}; swap rates {swaps}; "
            f"{float(self.round_trips.double().mean()):.3g} round trips per chain; "
            f"acceptance {min(moves):.3f} to {max(moves):.3f}; {self.score_calls:,} score calls)"
        )
        return "\n".join([text, *(f"hint: {hint}" for hint in self.hints)])


def round_trips(walkers: Int[Tensor, "chain draw level"]) -> Int[Tensor, " chain"]:
    """Return how often a walker went from the lowest level to the highest and back, over all walkers of a chain.

    Args:
        walkers: Number of the walker that was at a level after every sweep; the first level is the highest.
    """
    chains, _, levels = walkers.shape
    trips = torch.zeros(chains, dtype=torch.int64, device=walkers.device)
    rising, falling = (torch.zeros(chains, levels, dtype=torch.bool, device=walkers.device) for _ in range(2))
    row = torch.arange(chains, device=walkers.device)
    for now in walkers.unbind(1):
        top, bottom = now[:, 0].long(), now[:, -1].long()
        falling[row, top] |= rising[row, top]  # it has been at the lowest level before
        trips += falling[row, bottom]
        falling[row, bottom], rising[row, bottom] = False, True
    return trips

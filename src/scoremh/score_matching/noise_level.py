"""The noise level at which to read a noise-conditional score."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from scoremh.networks import AtNoiseLevel
from scoremh.score_matching.losses import implicit_losses_of


def best_noise_level(net: nn.Module, noise_levels: Sequence[float], x: Float[Tensor, "sample *event"]) -> float:
    """Return the noise level at which a score is best, by its implicit loss on samples it has not seen.

    A low level is near the score of the samples themselves but hard to learn, a high one is blurred. From the middle
    level on, the next one is taken as long as it is better by more than a standard error.

    Args:
        net: Noise-conditional network, `net(x, sigma)`.
        noise_levels: Noise levels to choose from, in order.
        x: Held-out samples, in the coordinates of the network.
    """
    each = [implicit_losses_of(AtNoiseLevel(net, level), x) for level in noise_levels]

    def better(there: int) -> bool:
        gain = each[here] - each[there]
        return len(x) > 1 and float(gain.mean()) > float(gain.std()) / math.sqrt(len(x))

    here = len(noise_levels) // 2
    while steps := [there for there in (here - 1, here + 1) if 0 <= there < len(noise_levels) and better(there)]:
        here = steps[0]
    return noise_levels[here]

"""Are two samples from one distribution? A permutation test of their energy distance, and a classifier."""

from dataclasses import dataclass

import torch

from scoremh._shared import checks, rng
from scoremh._shared.samples import Samples
from scoremh.metrics._points import as_matrices, distance_blocks


@dataclass(frozen=True)
class TwoSampleTest:
    """The result of a permutation test of the hypothesis that both samples are from one distribution.

    Args:
        p_value: Share of permutations, the identity included, with at least this energy distance; uniform under the
            hypothesis.
        energy_distance: Energy distance between the samples.
        permutations: Number of random permutations.
    """

    p_value: float
    energy_distance: float
    permutations: int


def two_sample_test(
    x: Samples, y: Samples, *, permutations: int = 999, generator: torch.Generator | None = None
) -> TwoSampleTest:
    """Test whether two samples are from one distribution, by the energy distance and permutations of all points.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        permutations: Number of random permutations; the smallest p-value is 1 / (permutations + 1).
        generator: Random number generator; the same seed gives the same draws.
    """
    checks.count(permutations, "permutations")
    first, second = as_matrices(x, y)
    points, n, m = torch.cat([first, second]), len(first), len(second)
    keys = rng.uniform((permutations + 1, n + m), points, generator)
    keys[0] = torch.arange(n + m, device=keys.device)  # the samples as they are
    # A column per permutation: 1 / n where a point counts for x, -1 / m where it does for y.
    sign = torch.full((n + m, permutations + 1), -1 / m, dtype=points.dtype, device=points.device)
    sign.scatter_(0, keys.argsort(1)[:, :n].T, 1 / n)
    done, energies = 0, torch.zeros(permutations + 1, dtype=points.dtype, device=points.device)
    for distance in distance_blocks(points, points):  # the energy distance is -sign^T D sign
        energies -= (sign[done : done + len(distance)] * (distance @ sign)).sum(0)
        done += len(distance)
    energy = energies[0]
    rounding = 1e-12 * energies.abs().max()  # a permutation may give the same distance by another order of sums
    at_least = int((energies[1:] >= energy - rounding).sum())
    return TwoSampleTest((1 + at_least) / (1 + permutations), float(energy), permutations)


def c2st(x: Samples, y: Samples, *, folds: int = 5, generator: torch.Generator | None = None) -> float:
    """Return the accuracy of a classifier that separates two samples, on held-out points: 0.5 is perfect, 1 is bad.

    A network of two hidden layers on standardised coordinates, cross-validated; the larger sample is cut to the size of
    the smaller, so that guessing gives 0.5.

    Args:
        x: First sample, `(point, *event)`.
        y: Second sample, with events of the same shape; its number of points may differ.
        folds: Number of folds of the cross-validation.
        generator: Random number generator; the same seed gives the same draws.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    checks.count(folds, "folds", at_least=2)
    first, second = as_matrices(x, y)
    n = min(len(first), len(second))
    if n < folds:
        raise ValueError(checks.message(f"at least {folds} points in each sample", n, "Pass more points."))
    seed = rng.seeds(1, generator)[0] % 2**32
    chosen = [
        one[torch.randperm(len(one), generator=rng.seeded(seed, torch.device("cpu")))[:n]] for one in (first, second)
    ]
    points, labels = torch.cat(chosen).cpu().numpy(), [0] * n + [1] * n
    hidden = max(32, 10 * points.shape[1])
    network = MLPClassifier((hidden, hidden), early_stopping=True, max_iter=500, random_state=seed)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return float(cross_val_score(make_pipeline(StandardScaler(), network), points, labels, cv=split).mean())

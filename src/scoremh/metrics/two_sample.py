"""Can two samples be told apart? By a permutation test of their energy distance, and by a classifier."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scoremh._shared import checks, rng
from scoremh.metrics._points import both, pieces


@dataclass(frozen=True)
class TwoSampleTest:
    """A permutation test of "both samples are of one law".

    Args:
        p_value: The share of permutations, this one among them, with at least this distance; uniform under one law.
        energy_distance: Between the samples.
        permutations: How many were drawn.
    """

    p_value: float
    energy_distance: float
    permutations: int


def two_sample_test(
    x: Tensor, y: Tensor, *, permutations: int = 999, generator: torch.Generator | None = None
) -> TwoSampleTest:
    """Test whether two samples are of one law, by the energy distance and permutations of all points.

    Args:
        x: `(point, *event)`.
        y: Of the same events; as many points or not.
        permutations: More of them give smaller p-values a chance.
        generator: Source of randomness.
    """
    checks.count(permutations, "permutations")
    first, second = both(x, y)
    points, n, m = torch.cat([first, second]), len(first), len(second)
    keys = rng.uniform((permutations + 1, n + m), points, generator)
    keys[0] = torch.arange(n + m, device=keys.device)  # the samples as they are
    # A column per permutation: 1 / n where a point counts for x, -1 / m where it does for y.
    sign = torch.full((n + m, permutations + 1), -1 / m, dtype=points.dtype, device=points.device)
    sign.scatter_(0, keys.argsort(1)[:, :n].T, 1 / n)
    done, energies = 0, torch.zeros(permutations + 1, dtype=points.dtype, device=points.device)
    for distance in pieces(points, points):  # the energy distance is -sign^T D sign
        energies -= (sign[done : done + len(distance)] * (distance @ sign)).sum(0)
        done += len(distance)
    energy = energies[0]
    rounding = 1e-12 * energies.abs().max()  # a permutation may give the same distance by another order of sums
    at_least = int((energies[1:] >= energy - rounding).sum())
    return TwoSampleTest((1 + at_least) / (1 + permutations), float(energy), permutations)


def c2st(x: Tensor, y: Tensor, *, folds: int = 5, generator: torch.Generator | None = None) -> float:
    """Return how often a classifier tells the samples apart on points it was not trained on: 0.5 is perfect, 1 is bad.

    A network of two hidden layers on standardised coordinates, cross-validated; the larger sample is cut to the size of
    the smaller, so that guessing gives 0.5.

    Args:
        x: `(point, *event)`.
        y: Of the same events; as many points or not.
        folds: Of the cross-validation.
        generator: Source of randomness.
    """
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    checks.count(folds, "folds", at_least=2)
    first, second = both(x, y)
    n = min(len(first), len(second))
    if n < folds:
        raise ValueError(checks.message(f"at least {folds} points in each sample", n, "Bring more points."))
    seed = rng.seeds(1, generator)[0] % 2**32
    chosen = [
        one[torch.randperm(len(one), generator=rng.seeded(seed, torch.device("cpu")))[:n]] for one in (first, second)
    ]
    points, labels = torch.cat(chosen).cpu().numpy(), [0] * n + [1] * n
    hidden = max(32, 10 * points.shape[1])
    network = MLPClassifier((hidden, hidden), early_stopping=True, max_iter=500, random_state=seed)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return float(cross_val_score(make_pipeline(StandardScaler(), network), points, labels, cv=split).mean())

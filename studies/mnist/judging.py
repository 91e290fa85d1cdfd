"""How far images are from test images: each number beside its floor, that of other real images."""

import numpy as np
import torch
from torch import Tensor

from scoremh import metrics
from studies.framework import Record
from studies.mnist import lenet

NEIGHBOURS = 3  # within whose distance an image counts as near, for precision and recall
DISTANCES = {
    "w1": "pixel W1",
    "frechet": "Frechet",
    "kernel": "kernel",
    "precision": "precision",
    "recall": "recall",
    "classes": "classes off",
}


def subset(images: Tensor, n: int, seed: int) -> Tensor:
    """Return a random subset."""
    return images[torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:n]]


def frechet_squared(a: Tensor, b: Tensor) -> float:
    """Return |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)), between normal distributions with the moments of features."""
    (mean, covariance), (other_mean, other) = ((x.mean(0), x.mT.cov()) for x in (a, b))
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT  # C^(1/2), symmetric where C C' is not
    shared = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).square().sum() + covariance.trace() + other.trace() - 2 * shared)


def kernel_squared(a: Tensor, b: Tensor) -> float:
    """Return the unbiased squared MMD with the kernel (x.y / d + 1)^3 (Binkowski et al. 2018)."""

    def total(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y.mT / x.shape[1] + 1) ** 3

    own = sum((k := total(x, x)).sum() - k.diagonal().sum() for x in (a, b)) / (len(a) * (len(a) - 1))
    return float(own - 2 * total(a, b).mean())


def covered(a: Tensor, by: Tensor) -> float:
    """Return the share of points that lie within the third neighbour's distance of one of the others."""
    reach = torch.cdist(by, by).kthvalue(NEIGHBOURS + 1).values  # the first neighbour is the point itself
    return float((torch.cdist(a, by) <= reach).any(1).double().mean())


def class_distance(a: Tensor, b: Tensor) -> float:
    """Return half the sum of differences between the shares of the ten digits."""
    shares = [lenet.digits(x).bincount(minlength=10) / len(x) for x in (a, b)]
    return float((shares[0] - shares[1]).abs().sum() / 2)


@torch.inference_mode()
def judged(images: Tensor, reference: Tensor) -> Record:
    """Return all distances of images to as many real ones; None where images are not finite.

    Images are clamped to [-1, 1] for the features, whose network saw no others.
    """
    if not bool(images.isfinite().all()):
        return dict.fromkeys(DISTANCES)
    clamped = images.clamp(-1, 1)
    mine, theirs = lenet.features(clamped), lenet.features(reference)
    return {
        "w1": metrics.w1(images.flatten(1), reference.flatten(1)),
        "frechet": frechet_squared(mine, theirs),
        "kernel": kernel_squared(mine, theirs),
        "precision": covered(mine, theirs),
        "recall": covered(theirs, mine),
        "classes": class_distance(clamped, reference),
    }


def floor(images: Tensor, n: int, repeats: int = 3) -> Record:
    """Return all distances between disjoint random subsets of real images, in the mean."""
    found = []
    for seed in range(repeats):
        both = subset(images, 2 * n, 1000 + seed)
        found.append(judged(both[:n], both[n:]))
    return {key: float(np.mean([one[key] for one in found])) for key in DISTANCES}

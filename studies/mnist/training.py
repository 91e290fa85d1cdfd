"""Train the networks in `studies/weights`: `python -m studies.mnist.training NAME` writes one file of it.

| name | file |
|---|---|
| score | mnist-score: `UNet` by `MultilevelDenoising`, on the 60,000 training images |
| lenet | mnist-lenet: in whose features images are compared |
| literal, free, antisymmetric, potential | mnist-NAME: acceptances for all noise levels and steps |

MNIST's training images come from the folder in `SCOREMH_DATA`, a cache, or the internet. An interrupted training is
resumed by the same command.
"""

import hashlib
import sys

import torch

from scoremh import BalanceMatching, Recipe, fit_score
from scoremh.balance_matching import FormName
from scoremh.networks import UNet
from scoremh.proposals import ScaledMALA
from scoremh.score_matching import MultilevelDenoising
from studies.mnist.judging import train_lenet
from studies.mnist.levels import fit_acceptance_at_levels
from studies.mnist.networks import acceptance_network
from studies.mnist.sampling import HIGH, LOW, kept_score
from studies.mnist.source import WEIGHTS, mnist

# around the levels of sampling, in units of pixels in [-1, 1]
LOSS = MultilevelDenoising(0.04, 12.0, variance_reduced=False)
SCORE_RECIPE = Recipe(8000, batch=64, rate=2e-3, schedule="cosine", held_out=0.01, check_every=200, patience=None)
ACCEPTANCE_RECIPE = Recipe(4000, batch=16, rate=1e-3, schedule="cosine", held_out=0.002, check_every=500, patience=None)
STEPS = (0.3, 1.3)  # tau, of the acceptances
PAPER_ENTROPY = 2.0  # lambda, of most rows of the paper's Table 3; it gives none for MNIST
FORMS: dict[str, FormName] = {
    "literal": "free",
    "free": "free",
    "antisymmetric": "antisymmetric",
    "potential": "potential",
}


def main(name: str) -> None:
    """Write one file, and print its hash."""
    torch.set_num_threads(1)
    path = WEIGHTS / f"mnist-{name}.safetensors"
    checkpoint = path.with_suffix(".checkpoint")
    if name == "lenet":
        train_lenet(*mnist("train", labels=True))
    elif name == "score":
        draws = torch.Generator().manual_seed(19)
        net = UNet((1, 28, 28), generator=draws)
        fit_score(
            mnist("train"),
            LOSS,
            net,
            standardize=False,
            recipe=SCORE_RECIPE,
            generator=draws,
            progress=True,
            checkpoint=checkpoint,
        ).save(path)
    else:
        draws = torch.Generator().manual_seed(23)
        fit_acceptance_at_levels(
            kept_score().net,
            ScaledMALA,
            mnist("train"),
            acceptance_network(name, draws),
            form=FORMS[name],
            noise_range=(LOW, HIGH),
            steps=STEPS,
            matching=BalanceMatching(entropy=PAPER_ENTROPY) if name == "literal" else None,
            recipe=ACCEPTANCE_RECIPE,
            generator=draws,
            progress=True,
            checkpoint=checkpoint,
        ).save(path)
    checkpoint.unlink(missing_ok=True)
    print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


if __name__ == "__main__":
    main(*sys.argv[1:])

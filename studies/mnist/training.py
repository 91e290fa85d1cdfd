"""Train the networks in `studies/weights`: `python -m studies.mnist.training NAME` writes one file of it.

| name | file |
|---|---|
| score | mnist-score: `UNet` by `MultilevelDenoising`, on the 60,000 training images |
| literal, free, antisymmetric | mnist-NAME: acceptances for all noise levels and steps |

MNIST's training images come from the folder in `SCOREMH_DATA`, a cache, or the internet. An interrupted training is
resumed by the same command.
"""

import hashlib
import sys
from typing import Any

import torch

from scoremh import BalanceMatching, Recipe, fit_score
from scoremh.balance_matching import MATCHING, FormName
from scoremh.networks import UNet
from scoremh.score_matching import MultilevelDenoising
from scoremh.training import train
from studies.mnist.levels import LevelAcceptanceFit, LevelMatching
from studies.mnist.networks import SiameseAcceptance
from studies.mnist.sampling import HIGH, LOW, kept_score
from studies.mnist.source import WEIGHTS, images

# around the levels of sampling, in units of pixels in [-1, 1]
LOSS = MultilevelDenoising(0.04, 12.0, variance_reduced=False)
SCORE_RECIPE = Recipe(8000, batch=64, rate=2e-3, schedule="cosine", held_out=0.01, check_every=200, patience=None)
ACCEPTANCE_RECIPE = Recipe(4000, batch=16, rate=1e-3, schedule="cosine", held_out=0.002, check_every=500, patience=None)
STEPS = (0.3, 1.3)  # tau, of the acceptances
PAPER_ENTROPY = 2.0  # lambda, of most rows of the paper's Table 3; it gives none for MNIST


def main(name: str) -> None:
    """Write one file, and print its hash."""
    torch.set_num_threads(1)
    path = WEIGHTS / f"mnist-{name}.safetensors"
    checkpoint = path.with_suffix(".checkpoint")
    draws = torch.Generator().manual_seed(19 if name == "score" else 23)
    options: dict[str, Any] = {"generator": draws, "progress": True, "checkpoint": checkpoint}
    if name == "score":
        net = UNet((1, 28, 28), generator=draws)
        fit_score(images("train"), LOSS, net, standardize=False, recipe=SCORE_RECIPE, **options).save(path)
    else:
        learned_acceptance(name, draws, options).save(path)
    checkpoint.unlink(missing_ok=True)
    print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


def learned_acceptance(name: str, draws: torch.Generator, options: dict[str, Any]) -> LevelAcceptanceFit:
    """Return an acceptance for all noise levels and steps."""
    form: FormName = "antisymmetric" if name == "antisymmetric" else "free"
    # where log a is flat a free form may never learn
    net = SiameseAcceptance(literal=name == "literal", first_logit=-5.0 if name == "free" else 0.0, generator=draws)
    matching = BalanceMatching(entropy=PAPER_ENTROPY) if name == "literal" else MATCHING[form]
    loss = LevelMatching(matching, kept_score().net, form, (LOW, HIGH), STEPS)
    fit = train(net, loss, images("train"), recipe=ACCEPTANCE_RECIPE, **options)
    return LevelAcceptanceFit(**vars(fit), form=form, loss=repr(loss))


if __name__ == "__main__":
    main(*sys.argv[1:])

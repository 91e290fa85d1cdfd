"""Acceptances of images that are learned: one network each for all noise levels and steps."""

from pathlib import Path

import torch
from torch import nn

from scoremh import BalanceMatching, Recipe, ScoreFit, datasets
from scoremh.balance_matching import FormName, fit_acceptance_at_levels
from scoremh.networks import PotentialUNet, SiameseAcceptance
from scoremh.proposals import ScaledMALA
from studies.mnist.images import SCORE
from studies.mnist.sampling import HIGH, LOW

ACCEPTANCE_RECIPE = Recipe(4000, batch=16, rate=1e-3, held_out=0.002, check_every=500, patience=None)
STEPS = (0.3, 1.3)  # tau, of the acceptances
PAPER_ENTROPY = 2.0  # lambda, of most rows of the paper's Table 3; it gives none for MNIST
FORMS: dict[str, FormName] = {
    "literal": "free",
    "free": "free",
    "antisymmetric": "antisymmetric",
    "potential": "potential",
}


def acceptance_network(name: str, generator: torch.Generator) -> nn.Module:
    """Return the network of an acceptance, with its first weights."""
    if name == "potential":
        return PotentialUNet((1, 28, 28), (8, 16, 32, 64), generator=generator)
    first_logit = -5.0 if name == "free" else 0.0  # where log a is flat a free form may never learn
    return SiameseAcceptance((1, 28, 28), literal=name == "literal", first_logit=first_logit, generator=generator)


def train_acceptance(name: str, path: Path, recipe: Recipe = ACCEPTANCE_RECIPE) -> None:
    """Train an acceptance for the score that is kept, and save it."""
    draws = torch.Generator().manual_seed(23)
    checkpoint = path.with_suffix(".checkpoint")
    fit_acceptance_at_levels(
        ScoreFit.load(SCORE).net,
        ScaledMALA,
        datasets.mnist("train"),
        acceptance_network(name, draws),
        form=FORMS[name],
        noise_range=(LOW, HIGH),
        steps=STEPS,
        matching=BalanceMatching(entropy=PAPER_ENTROPY) if name == "literal" else None,
        recipe=recipe,
        generator=draws,
        progress=True,
        checkpoint=checkpoint,
    ).save(path)
    checkpoint.unlink()

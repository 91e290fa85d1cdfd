"""Acceptances of images that are learned: one network each for all noise levels and steps."""

from pathlib import Path

import torch

from scoremh import BalanceMatching, Recipe, ScoreFit
from scoremh.balance_matching import FormName
from scoremh.proposals import ScaledMALA
from studies.mnist.images import SCORE
from studies.mnist.levels import fit_acceptance_at_levels
from studies.mnist.networks import acceptance_network
from studies.mnist.sampling import HIGH, LOW
from studies.mnist.source import mnist

ACCEPTANCE_RECIPE = Recipe(4000, batch=16, rate=1e-3, schedule="cosine", held_out=0.002, check_every=500, patience=None)
STEPS = (0.3, 1.3)  # tau, of the acceptances
PAPER_ENTROPY = 2.0  # lambda, of most rows of the paper's Table 3; it gives none for MNIST
FORMS: dict[str, FormName] = {
    "literal": "free",
    "free": "free",
    "antisymmetric": "antisymmetric",
    "potential": "potential",
}


def train_acceptance(name: str, path: Path, recipe: Recipe = ACCEPTANCE_RECIPE) -> None:
    """Train an acceptance for the score that is kept, and save it."""
    draws = torch.Generator().manual_seed(23)
    checkpoint = path.with_suffix(".checkpoint")
    fit_acceptance_at_levels(
        ScoreFit.load(SCORE).net,
        ScaledMALA,
        mnist("train"),
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

"""The images, and the score learned from them."""

from pathlib import Path

import torch
from torch import Tensor

from scoremh import Recipe, ScoreFit, fit_score
from scoremh.networks import UNet
from scoremh.score_matching import MultilevelDenoising
from studies.mnist.source import mnist

DATA = Path(__file__).parent.parent / "data"
WEIGHTS = Path(__file__).parent.parent / "weights"
LOSS = MultilevelDenoising(
    0.04, 12.0, variance_reduced=False
)  # around the levels of sampling, in units of pixels in [-1, 1]
SCORE_SEED = 19


SCORE = WEIGHTS / "mnist-score.safetensors"


def score_file(folder: Path) -> Path:
    """Return the file of the score of a run: its own where it trained one, else the one that is kept."""
    own = folder / "score.safetensors"
    return own if own.exists() else SCORE


def mnist_test() -> Tensor:
    """Return MNIST's 10,000 test images, which a clone has."""
    return mnist("test", root=DATA)


def score_recipe(steps: int) -> Recipe:
    """Return how a score of images is trained: to the end, and judged on few images, since an image has many pixels."""
    return Recipe(
        steps, batch=64, rate=2e-3, schedule="cosine", held_out=0.01, check_every=min(200, steps), patience=None
    )


def train_score(x: Tensor, steps: int, path: Path, *, progress: bool = False) -> ScoreFit:
    """Return the score of images, from its file or trained; an interrupted training is resumed."""
    if not path.exists():
        draws = torch.Generator().manual_seed(SCORE_SEED)
        net, checkpoint = UNet((1, 28, 28), generator=draws), path.with_suffix(".checkpoint")
        fit_score(
            x,
            LOSS,
            net,
            standardize=False,
            recipe=score_recipe(steps),
            generator=draws,
            progress=progress,
            checkpoint=checkpoint,
        ).save(path)
        checkpoint.unlink()
    return ScoreFit.load(path)

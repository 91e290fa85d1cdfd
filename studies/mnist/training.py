"""Train the networks in `studies/weights`: `python -m studies.mnist.training NAME` writes one file of it.

| name | file |
|---|---|
| score | mnist-score: `UNet` by `MultilevelDenoising`, on the 60,000 training images |
| lenet | mnist-lenet: in whose features images are compared |
| literal, free, antisymmetric, potential | mnist-NAME: acceptances for all noise levels and steps |

`score --as-is` saves the averaged weights of an interrupted training of the score as they are.

MNIST's training images come from the folder in `SCOREMH_DATA`, a cache, or the internet. An interrupted training is
resumed by the same command.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open

from scoremh import Recipe, ScoreFit
from scoremh.networks import UNet
from scoremh.types import Box
from studies.mnist import lenet
from studies.mnist.acceptances import train_acceptance
from studies.mnist.images import LOSS, WEIGHTS, train_score
from studies.mnist.sampling import LOW
from studies.mnist.source import mnist

SCORE_STEPS = 8000


def interrupted_score(checkpoint: Path) -> ScoreFit:
    """Return the score with the averaged weights in a checkpoint."""
    net, prefix = UNet((1, 28, 28)), "average.module."
    with safe_open(checkpoint, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # a file, not a dict
        net.load_state_dict({name.removeprefix(prefix): file.get_tensor(name) for name in names})
        numbers, header = (json.loads(file.metadata()[part]) for part in ("numbers", "header"))
    own = {key: numbers[key] for key in ("history", "seed", "seconds")} | {"best": numbers["step"]}
    edge = torch.full((1, 28, 28), 1.2)  # a tenth of the range wider than the images
    fields = own | {"recipe": Recipe(**header["recipe"]), "loss": header["loss"]}
    net.requires_grad_(False).eval()
    return ScoreFit(net, support=Box(-edge, edge), noise_level=LOW, noise_range=(LOSS.low, LOSS.high), **fields)


def main(name: str, *options: str) -> None:
    """Write one file, and print its hash."""
    torch.set_num_threads(1)
    path = WEIGHTS / f"mnist-{name}.safetensors"
    if name == "score" and "--as-is" in options:
        interrupted_score(path.with_suffix(".checkpoint")).save(path)
    elif name == "score":
        train_score(mnist("train"), SCORE_STEPS, path, progress=True)
    elif name == "lenet":
        lenet.save(lenet.train(*mnist("train", labels=True)))
    else:
        train_acceptance(name, path)
    print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


if __name__ == "__main__":
    main(*sys.argv[1:])

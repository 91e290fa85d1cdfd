"""Work to be killed: `python -m benchmarks.soak.work KIND FOLDER` resumes it, and prints a hash of its result."""

import sys
from pathlib import Path

import torch

from benchmarks.soak.damage import LAW, digest, seeded
from scoremh import MALA, LineIntegral, ScoreMH, fit_score, metropolis_hastings, networks, replica_exchange, sample
from scoremh.training import Recipe

STEPS = 3000


def stored(folder: Path, pool: int | None = None) -> str:
    kernel = metropolis_hastings(LAW, MALA(0.4), LineIntegral())
    start = LAW.sample(1200, generator=seeded())
    chains = sample(kernel, start, draws=STEPS // 3, thin=3, generator=seeded(1), store=folder / "run", pool=pool)
    return digest(chains.draws, chains.accepted, chains.acceptance_prob)


def replicas(folder: Path) -> str:
    def kernel_at(level: float):  # type: ignore[no-untyped-def]
        return metropolis_hastings(LAW.at(level), MALA(0.3 * level**2), LineIntegral())

    start = LAW.sample(200, generator=seeded())
    options = {"model": LAW, "draws": STEPS // 3, "generator": seeded(), "store": folder / "replicas"}
    return digest(replica_exchange(kernel_at, [1.0, 0.7, 0.5], start, **options).draws)  # type: ignore[arg-type]


def training(folder: Path) -> str:
    net, recipe = networks.ScoreMLP(2, 64, generator=seeded()), Recipe(steps=4 * STEPS, batch=256, patience=None)
    fit = fit_score(
        LAW.sample(2000, generator=seeded()), net=net, recipe=recipe, generator=seeded(2), checkpoint=folder / "fit"
    )
    return digest(*fit.net.state_dict().values())


def estimator(folder: Path) -> str:
    steps = {"score_steps": STEPS, "acceptance_steps": STEPS, "annealing_steps": 2, "chain_steps": 20}
    model = ScoreMH(**steps, random_state=0, verbose=False)  # type: ignore[arg-type]
    model.fit(LAW.sample(1000, generator=seeded()).numpy(), checkpoint=folder)
    return digest(torch.from_numpy(model.sample(20)))


KINDS = {
    "sampling into a store": stored,
    "sampling in two processes": lambda folder: stored(folder, 2),
    "replica exchange": replicas,
    "training with a checkpoint": training,
    "fitting an estimator": estimator,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(KINDS[sys.argv[1]](Path(sys.argv[2])))

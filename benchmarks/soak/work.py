"""Work to be killed: `python -m benchmarks.soak.work KIND FOLDER` resumes it, and prints a hash of its result."""

import hashlib
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

from benchmarks.soak.damage import LAW, digest, seeded
from benchmarks.soak.small_study import STUDY
from scoremh import (
    MALA,
    Chains,
    LineIntegral,
    ScoreMH,
    cli,
    fit_score,
    metropolis_hastings,
    networks,
    replica_exchange,
    sample,
)
from scoremh._shared.files import replacing
from scoremh.estimator.files import CONFIG, RunFolder
from scoremh.training import Recipe
from studies.framework import runner

STEPS = 3000
BEGUN = "begun"  # the first line that is printed


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
    net, recipe = networks.ScoreMLP(2, 64, generator=seeded()), Recipe(steps=2 * STEPS, batch=256, patience=None)
    fit = fit_score(
        LAW.sample(2000, generator=seeded()), net=net, recipe=recipe, generator=seeded(2), checkpoint=folder / "fit"
    )
    return digest(*fit.net.state_dict().values())


def estimator(folder: Path) -> str:
    steps = {"score_steps": STEPS, "acceptance_steps": STEPS // 3, "annealing_steps": 2, "chain_steps": 20}
    model = ScoreMH(**steps, noise_level=1.0, random_state=0, verbose=False)  # type: ignore[arg-type]
    model.fit(LAW.sample(1000, generator=seeded()).numpy(), checkpoint=folder)
    return digest(torch.from_numpy(model.sample(20)))


def study(folder: Path) -> str:
    runner.compute(STUDY, folder, pool=2)
    found = runner.cells_in(folder, STUDY.kinds)
    hashes = [found[cell]["value"] for stage in STUDY.stages(STUDY.config) for cell in stage]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def commands(folder: Path) -> str:
    """Fit and sample on the command line, with --resume where the call before was killed."""
    rows, run = folder / "rows.npy", folder / "run"
    if not rows.exists():
        with replacing(rows) as partial, partial.open("wb") as file:
            np.save(file, LAW.sample(1000, generator=seeded()).numpy())
    begun = (run / CONFIG).exists()
    if not begun or not RunFolder.open(run).config["finished"]:
        steps = ["--score-steps", str(STEPS // 2), "--acceptance-steps", str(STEPS // 6), "--annealing-steps", "2"]
        options = [*steps, "--chain-steps", "20", "--noise-level", "1", "--quiet", *["--resume"] * begun]
        cli.main(["fit", str(rows), "--out", str(run), *options])
    options = ["--draws", "2000", "--trace", "2", "--quiet", *["--resume"] * (run / "sampling").exists()]
    cli.main(["sample", str(run), *options])
    return digest(Chains.load(run / "chains.nc").draws)


KINDS = {
    "sampling into a store": stored,
    "sampling in two processes": lambda folder: stored(folder, 2),
    "replica exchange": replicas,
    "training with a checkpoint": training,
    "fitting an estimator": estimator,
    "a study in two processes": study,
    "scoremh fit and sample": commands,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(BEGUN, flush=True)
    with redirect_stdout(sys.stderr):
        result = KINDS[sys.argv[1]](Path(sys.argv[2]))
    print(result)

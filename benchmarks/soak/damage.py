"""Damage to files of the library: does loading raise an error that names the file, or give the same or another result?

A case writes files and reads them again, and says by a hash what it has read. One of its files is damaged at random: a
bit flipped, a byte replaced, bytes cut off or added, the file deleted, or another file put in its place.
"""

import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import (
    MALA,
    AcceptanceFit,
    Chains,
    LineIntegral,
    ScoreFit,
    ScoreMH,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    networks,
    replica_exchange,
    sample,
    targets,
)
from scoremh.sampling import store as stores
from scoremh.training import Recipe

loop: Any = import_module("scoremh.sampling.sample")  # the package has a function of that name

LAW = targets.GaussianMixture([0.4, 0.6], [[-1.0, 0.0], [1.0, 0.5]])
KERNEL = metropolis_hastings(LAW, MALA(0.4), LineIntegral())
RECIPE = Recipe(steps=4, batch=16, check_every=2)
ESTIMATOR: dict[str, Any] = {
    "score_steps": 4,
    "acceptance_steps": 4,
    "annealing_steps": 1,
    "chain_steps": 4,
    "random_state": 0,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digest(*tensors: Tensor) -> str:
    """Return a hash of the values of tensors."""
    return hashlib.sha256(b"".join(x.detach().cpu().contiguous().numpy().tobytes() for x in tensors)).hexdigest()


@dataclass(frozen=True)
class Case:
    """Files that are written, and read again.

    Args:
        write: Writes to a folder.
        read: Reads from it, and returns a hash of what it has read.
    """

    write: Callable[[Path], object]
    read: Callable[[Path], str]


@contextmanager
def small_chunks() -> Iterator[None]:
    """Divide stored runs into many chunks, within."""
    before = stores.CHUNK_NUMBERS, loop.SEGMENT_FLOATS
    stores.CHUNK_NUMBERS, loop.SEGMENT_FLOATS = 100, 60
    try:
        yield
    finally:
        stores.CHUNK_NUMBERS, loop.SEGMENT_FLOATS = before


def stored(folder: Path, stop: int | None = None) -> str:
    """Sample into a store, or as far as some calls of the kernel, and return a hash of all that is read back."""
    calls = 0

    def run(point, steps, *, generator):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        assert KERNEL.run is not None
        return KERNEL.run(point, steps, generator=generator)

    kernel, start = KERNEL._replace(run=run), LAW.sample(10, generator=seeded())
    seconds, loop.SAVE_SECONDS = loop.SAVE_SECONDS, 0.0 if stop else loop.SAVE_SECONDS
    try:
        with small_chunks():
            chains = sample(kernel, start, draws=23, thin=2, generator=seeded(1), store=folder / "run")
            return digest(
                *(getattr(chains, name) for name in ("draws", "acceptance_prob", "accepted", "nonfinite", "outside"))
            )
    except KeyboardInterrupt:
        return ""
    finally:
        loop.SAVE_SECONDS = seconds


def replicas(folder: Path) -> str:
    def kernel_at(level: float):  # type: ignore[no-untyped-def]
        return metropolis_hastings(LAW.at(level), MALA(0.3 * level**2), LineIntegral())

    start = LAW.sample(6, generator=seeded())
    with small_chunks():
        found = replica_exchange(
            kernel_at, [1.0, 0.5], start, model=LAW, draws=12, generator=seeded(), store=folder / "replicas"
        )
    return digest(found.draws)


def trained(folder: Path) -> str:
    samples = LAW.sample(80, generator=seeded())
    net = networks.ScoreMLP(2, 8, generator=seeded())
    fit = fit_score(samples, net=net, recipe=RECIPE, generator=seeded(2), checkpoint=folder / "training.safetensors")
    return digest(*fit.net.state_dict().values())


def save_fit(folder: Path) -> None:
    samples = LAW.sample(80, generator=seeded())
    fit_score(samples, net=networks.ScoreMLP(2, 8), recipe=RECIPE, generator=seeded()).save(
        folder / "score.safetensors"
    )


def save_acceptance(folder: Path) -> None:
    samples, target = LAW.sample(80, generator=seeded()), LAW
    fit = fit_acceptance(target, MALA(0.2), samples, form="potential", recipe=RECIPE, generator=seeded())
    fit.save(folder / "acceptance.safetensors")


def save_estimator(folder: Path) -> None:
    ScoreMH(acceptance="potential", **ESTIMATOR, verbose=False).fit(LAW.sample(200, generator=seeded()).numpy()).save(
        folder / "model"
    )


def read_estimator(folder: Path) -> str:
    model = ScoreMH.load(folder / "model")
    assert model.acceptance_ is not None
    weights = [*model.score_.net.state_dict().values(), *model.acceptance_.net.state_dict().values()]
    settings = f"{model.get_params()}{model.diagnosis_}{model.sampler_.step_size}{model.sampler_.noise_level}"
    return digest(*weights, torch.from_numpy(model.held_out_)) + hashlib.sha256(settings.encode()).hexdigest()


def save_chains(folder: Path) -> None:
    sample(KERNEL, LAW.sample(5, generator=seeded()), draws=6, generator=seeded()).save(folder / "chains.nc")


def read_chains(folder: Path) -> str:
    chains = Chains.load(folder / "chains.nc")
    return digest(chains.draws, chains.accepted, chains.acceptance_prob) + repr(chains)


def weights(fit: ScoreFit | AcceptanceFit) -> str:
    return digest(*fit.net.state_dict().values()) + f"{fit.history}{fit.seed}{fit.loss}"


CASES = {
    "finished store": Case(stored, stored),
    "store of a killed run": Case(lambda folder: stored(folder, 9), stored),
    "store of replicas": Case(replicas, replicas),
    "checkpoint": Case(trained, trained),
    "saved score": Case(save_fit, lambda folder: weights(ScoreFit.load(folder / "score.safetensors"))),
    "saved acceptance": Case(
        save_acceptance, lambda folder: weights(AcceptanceFit.load(folder / "acceptance.safetensors"))
    ),
    "run folder": Case(save_estimator, read_estimator),
    "chains": Case(save_chains, read_chains),
}


def damaged(raw: bytes, others: list[bytes], dice: random.Random) -> tuple[str, bytes | None]:
    """Return a description of the damage and the damaged bytes; None if the file is deleted."""
    kind = dice.choice(["flip", "flip", "flip", "byte", "cut", "add", "delete", "swap"])
    place = dice.randrange(max(1, len(raw)))
    if kind == "flip" and raw:
        return kind, raw[:place] + bytes([raw[place] ^ (1 << dice.randrange(8))]) + raw[place + 1 :]
    if kind == "byte" and raw:
        return kind, raw[:place] + bytes([dice.randrange(256)]) + raw[place + 1 :]
    if kind == "cut":
        return kind, raw[:place]
    if kind == "add":
        return kind, raw + dice.randbytes(dice.randrange(1, 20))
    return ("swap", dice.choice(others)) if kind == "swap" and others else ("delete", None)


def campaign(name: str, trials: int, folder: Path, seed: int = 0) -> Counter[tuple[str, str]]:
    """Damage the files of a case at random, and return how often a kind of damage had which outcome."""
    case, dice, found = CASES[name], random.Random(f"{name} {seed}"), Counter[tuple[str, str]]()
    place = folder / name.replace(" ", "-")
    place.mkdir()
    case.write(place)
    right = case.read(shutil.copytree(place, folder / "copy"))
    shutil.rmtree(folder / "copy")
    whole = {path.relative_to(place): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    for _ in range(trials):
        target = dice.choice(list(whole))
        others = [raw for path, raw in whole.items() if path.suffix == target.suffix and raw != whole[target]]
        kind, raw = damaged(whole[target], others, dice)
        if raw == whole[target]:
            continue
        for path in place.rglob("*"):  # what the trial before has left
            if path.is_file() and path.relative_to(place) not in whole:
                path.unlink()
        for path, old in whole.items():
            if not (place / path).exists() or (place / path).read_bytes() != old:
                (place / path).write_bytes(old)
        (place / target).unlink() if raw is None else (place / target).write_bytes(raw)
        found[kind, outcome(case, place, target, right)] += 1
    return found


def outcome(case: Case, place: Path, target: Path, right: str) -> str:
    """Return what came of reading damaged files."""
    try:
        return "the same result" if case.read(place) == right else f"ANOTHER RESULT ({target})"
    except (ValueError, TypeError, OSError) as error:
        text = str(error)
        named = target.name in text or any(part in text for part in target.parts)
        return "refused by name" if named and str(place) in text else f"AN ERROR WITHOUT A NAME ({target}: {text[:80]})"

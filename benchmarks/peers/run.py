"""The cells of the comparison, kept one by one in a file: a run that is killed goes on where it was.

| cell | what |
|---|---|
| time | seconds of a transition of all chains, every sampler in turn, round by round |
| mixing | effective draws per transition of a chain and score calls, from exact draws |
| distance | W1 to the truth of where chains are after equal time, all started at one mode |
| growth | what our step costs by chains, dimension, nodes and width |
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import scoremh
from benchmarks import timing
from benchmarks.peers.effective import w1, worst_share
from benchmarks.peers.growth import growth
from benchmarks.peers.jax_peers import jax_peers
from benchmarks.peers.law import Law, Numbers
from benchmarks.peers.moves import GAUSS, HAMILTONIAN, SIMPSON, Moves, ours
from benchmarks.peers.torch_peers import annealed_moves, torch_peers

LAWS = (Law(2, 64), Law(10, 128), Law(50, 128), Law(200, 128))
SEEDS, ROUNDS, MANY_ROUNDS = (1, 2, 3), 5, 3
CHAINS, MIXING_CHAINS, MANY_CHAINS = 1_000, 250, 10_000
MIXING_SECONDS = 0.5  # CPU time of a run that effective draws are counted in
EQUAL_TIME = 100  # transitions of our MALA with Simpson's rule that take as long as every other sampler is given
MANY_LAW = LAWS[1]
MANY = (
    SIMPSON,
    GAUSS,
    HAMILTONIAN,
    "blackjax MALA",
    "blackjax NUTS",
    "torchebm Langevin, unadjusted, MALA's step",
    "ebmkit MALA",
)
SLOW, MAX_SLOW = ("torchebm Langevin, unadjusted", "torchebm HMC", "ebmkit NUTS"), 10  # left out in more dimensions
Cells = dict[str, Any]
Cell = Callable[[str, Callable[[], Any]], Any]


def run(path: Path, threads: int) -> None:
    """Measure all cells that are not yet in the file, with so many threads."""
    cell = kept(path)
    cell(f"about/{threads}", about)
    if threads == 1:
        for law in LAWS:
            of_law(law, cell)
        cell("growth", growth)
    of_many(threads, cell)


def kept(path: Path) -> Cell:
    """Return a function that measures a cell and keeps it in the file, or finds it there."""
    cells: Cells = json.loads(path.read_text())["cells"] if path.exists() else {}

    def cell(key: str, measure: Callable[[], Any]) -> Any:
        if key not in cells:
            start = time.process_time()
            cells[key] = measure()
            print(f"{key}: {time.process_time() - start:.0f} CPU seconds", file=sys.stderr, flush=True)
            path.write_text(json.dumps({"cells": cells}, indent=1) + "\n")
        return cells[key]

    return cell


def of_many(threads: int, cell: Cell) -> None:
    """Measure the time of many chains."""
    key = f"time/{MANY_LAW.dimension}/{MANY_CHAINS}/{threads}"
    cell(key, lambda: times(many(MANY_LAW, threads), MANY_LAW, MANY_CHAINS, threads))


def about() -> str:
    """Return when, where and with what was measured."""
    packages = "torch", "jax", "blackjax", "torchebm", "ebmkit", "pdmp-jax"
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    machine = f"{os.cpu_count()} cores ({timing.processor()})"
    day, python = date.today().isoformat(), platform.python_version()
    return f"Measured on {day}: {machine}, Python {python}, scoremh {scoremh.__version__}, {versions}."


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def of_law(law: Law, cell: Cell) -> None:
    """Measure the cells of a law."""
    every = {**ours(law), **jax_peers(law), **torch_peers(law)}
    slow = SLOW if law.dimension > MAX_SLOW else ()
    samplers = prepared({name: make for name, make in every.items() if name not in slow})
    key = str(law.dimension)
    taken = cell(f"time/{key}/{CHAINS}/1", lambda: times(samplers, law, CHAINS, 1))
    seconds = {name: float(np.median(found["seconds"])) for name, found in taken.items()}
    for name, make in samplers.items():
        for seed in SEEDS:
            transitions = int(EQUAL_TIME * seconds[SIMPSON] / seconds[name])
            cell(f"mixing/{key}/{name}/{seed}", partial(mixing, make, law, seed))
            cell(f"distance/{key}/{name}/{seed}", partial(distance, make, law, transitions, seed))
    for seed in SEEDS:
        cell(f"floor/{key}/{seed}", partial(floor, law, seed))


def prepared(makes: Mapping[str, Callable[[], Moves]]) -> dict[str, Callable[[], Moves]]:
    """Return samplers that are tuned once, when they are first used."""
    return {name: cache(make) for name, make in makes.items()}


def many(law: Law, threads: int) -> dict[str, Callable[[], Moves]]:
    """Return the samplers that are measured with many chains."""
    pool = ThreadPoolExecutor(threads) if threads > 1 else None
    every = {**ours(law, pool), **jax_peers(law), **torch_peers(law)}
    return prepared({name: every[name] for name in MANY if name in every})


def times(samplers: Mapping[str, Callable[[], Moves]], law: Law, chains: int, threads: int) -> Cells:
    """Return settings, calls and the seconds of a transition: CPU time, or wall time with more than one thread."""
    torch.set_num_threads(1)
    made = {name: make() for name, make in samplers.items()}
    torch.set_num_threads(threads)
    clock, x = (time.process_time if threads == 1 else time.perf_counter), law.sample(chains, 0)
    found: Cells = {name: {"settings": moves.settings, "seconds": []} for name, moves in made.items()}
    for number in range((ROUNDS if chains == CHAINS else MANY_ROUNDS) + 1):
        for name, moves in made.items():
            start = clock()
            _, calls = moves.advance(x, number)
            taken = (clock() - start) / moves.transitions
            if number:
                found[name]["seconds"].append(taken)
                found[name]["calls"] = calls / chains / moves.transitions
    return found


def mixing(make: Callable[[], Moves], law: Law, seed: int) -> Cells:
    """Return effective draws per transition of a chain, of the worst functional."""
    moves = make()
    if moves.independent is not None:
        return {"share": 1 / moves.independent, "transitions": moves.independent}
    x = law.sample(MIXING_CHAINS, seed)
    x = moves.advance(x, 0)[0][-1]  # compiles
    start, values = time.process_time(), list[Numbers]()
    while time.process_time() - start < MIXING_SECONDS or len(values) < 4:
        draws, _ = moves.advance(x, 1000 * seed + len(values))
        x = draws[-1]
        values.append(law.functionals(draws))
    path = np.concatenate(values)
    mean, std = law.truth()
    bias = np.abs(path.mean((0, 1)) - mean) / std
    return {"share": worst_share(path), "transitions": len(path), "bias": float(bias.max())}


def distance(make: Callable[[], Moves], law: Law, transitions: int, seed: int) -> Cells:
    """Return W1 of where chains are after so many transitions, all started at one mode."""
    moves, x = make(), law.mean.expand(CHAINS, -1).contiguous()
    if moves.independent is not None:  # the whole way from noise in that time, at so many levels
        moves = annealed_moves(law, transitions)
    for k in range(math.ceil(transitions / moves.transitions)):
        draws, _ = moves.advance(x, 1000 * seed + k)
        x = draws[min(transitions - k * moves.transitions, moves.transitions) - 1]
    return {"transitions": transitions, **w1_of(law, x)}


def floor(law: Law, seed: int) -> Cells:
    """Return W1 of exact draws, one per chain."""
    return w1_of(law, law.sample(CHAINS, seed))


def w1_of(law: Law, x: Tensor) -> dict[str, float]:
    """Return W1 along the modes, and its mean over the other coordinates."""
    distances = w1(x.double().numpy(), law.quantiles(len(x)))
    return {"along": float(distances[0]), "others": float(distances[1:].mean())}

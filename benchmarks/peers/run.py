"""The cells of the comparison, kept one by one in a file: a run that is killed goes on where it was.

| cell | what |
|---|---|
| time | seconds of a transition of all chains, every sampler in turn, round by round |
| mixing | effective draws per transition of a chain, and the bias, from exact draws |
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scoremh
from benchmarks import timing
from benchmarks.peers.effective import worst_share
from benchmarks.peers.jax_peers import jax_peers
from benchmarks.peers.law import Law, Numbers
from benchmarks.peers.moves import Moves, ours
from benchmarks.peers.torch_peers import torch_peers

LAWS = (Law(2, 64), Law(10, 128), Law(50, 128), Law(200, 128))
SEEDS, ROUNDS = (1, 2, 3), 5
CHAINS, MIXING_CHAINS = 1_000, 250
MIXING_SECONDS = 1.0  # CPU time of a run that effective draws are counted in
SLOW, MAX_SLOW = ("torchebm HMC", "ebmkit NUTS"), 10  # left out in more dimensions
Cells = dict[str, Any]
Cell = Callable[[str, Callable[[], Any]], Any]


def run(path: Path) -> None:
    """Measure all cells that are not yet in the file, on one thread."""
    torch.set_num_threads(1)
    cell = kept(path)
    cell("about", about)
    for law in LAWS:
        of_law(law, cell)


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
    cell(f"time/{law.dimension}", lambda: times(samplers, law))
    for name, make in samplers.items():
        for seed in SEEDS:
            cell(f"mixing/{law.dimension}/{name}/{seed}", partial(mixing, make, law, seed))


def prepared(makes: Mapping[str, Callable[[], Moves]]) -> dict[str, Callable[[], Moves]]:
    """Return samplers that are tuned once, when they are first used."""
    return {name: cache(make) for name, make in makes.items()}


def times(samplers: Mapping[str, Callable[[], Moves]], law: Law) -> Cells:
    """Return settings, score calls and the CPU seconds of a transition."""
    made, x = {name: make() for name, make in samplers.items()}, law.sample(CHAINS, 0)
    found: Cells = {name: {"settings": moves.settings, "seconds": []} for name, moves in made.items()}
    for number in range(ROUNDS + 1):
        for name, moves in made.items():
            start = time.process_time()
            _, calls = moves.advance(x, number)
            taken = (time.process_time() - start) / moves.transitions
            if number:  # the first one compiles
                found[name]["seconds"].append(taken)
                found[name]["calls"] = calls / CHAINS / moves.transitions
    return found


def mixing(make: Callable[[], Moves], law: Law, seed: int) -> Cells:
    """Return effective draws per transition of a chain, of the worst functional, and the largest bias."""
    moves, x = make(), law.sample(MIXING_CHAINS, seed)
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

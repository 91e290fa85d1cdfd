"""The page of the comparison: `page.md`, filled in from the cells that were measured, and its picture."""

import json
import re
import statistics
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.peers.moves import DEFAULT, OURS
from benchmarks.peers.run import CHAINS, LAWS, MAX_SLOW, MIXING_CHAINS, ROUNDS, SEEDS, SLOW
from benchmarks.timing import Ratio

MAX_BIAS = 0.05  # standard deviations of the worst functional
GOAL = 2.0  # times the effective draws per second of a peer
LEAST_TIMES = 10  # autocorrelation times that a run must be long, or its effective draws flatter the sampler
DIMENSIONS = [law.dimension for law in LAWS]
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
Cells = dict[str, Any]


def page(path: Path) -> str:
    """Return the page."""
    cells = json.loads(path.read_text())["cells"]
    folder = FileSystemLoader(Path(__file__).parent)
    words = Environment(loader=folder, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return words.get_template("page.md").render(
        about=cells["about"],
        chains=f"{CHAINS:,}",
        mixing_chains=MIXING_CHAINS,
        rounds=ROUNDS,
        seeds=len(SEEDS),
        networks="; ".join(f"{law.dimension}, {law.hidden}" for law in LAWS),
        table=table(cells),
        biases=biases(cells),
        max_bias=MAX_BIAS,
        goal=GOAL,
        verdict=verdict(cells),
        slow=" and ".join(SLOW),
        max_slow=MAX_SLOW,
        settings=settings(cells),
    )


def picture(path: Path, folder: Path) -> None:
    """Draw effective draws per second against the dimension."""
    from studies.plots import curves

    cells = json.loads(path.read_text())["cells"]
    lines = {}
    for name in samplers(cells):
        there = [d for d in DIMENSIONS if name in cells[f"time/{d}"]]
        short = name.replace("Langevin, unadjusted", "ULA").replace("Hamiltonian", "HMC").removeprefix("pdmp_jax ")
        lines[short] = ([float(d) for d in there], [rate(cells, d, name) for d in there])
    labels = "dimensions", "effective draws per CPU second"
    curves(lines, folder / "peers.png", labels=labels, log=True, title=f"{CHAINS:,} chains, one thread")


def samplers(cells: Cells) -> list[str]:
    """Return the samplers, ours first."""
    return list(dict.fromkeys(name for d in DIMENSIONS for name in cells[f"time/{d}"]))


def rate(cells: Cells, dimension: int, name: str) -> float:
    """Return effective draws of all chains per second: the median over seeds."""
    seconds = statistics.median(cells[f"time/{dimension}"][name]["seconds"])
    return float(CHAINS * statistics.median(cell["share"] for cell in mixed(cells, dimension, name)) / seconds)


def mixed(cells: Cells, dimension: int, name: str) -> list[Cells]:
    """Return the runs of a sampler, one for each seed."""
    return [cells[f"mixing/{dimension}/{name}/{seed}"] for seed in SEEDS]


def bias(cells: Cells, dimension: int, name: str) -> float:
    """Return the bias of the worst functional: the median over seeds."""
    return float(statistics.median(cell["bias"] for cell in mixed(cells, dimension, name)))


def ratio(cells: Cells, dimension: int, peer: str) -> Ratio:
    """Return the quartiles, over rounds and seeds, of our effective draws per second over a peer's."""
    mine, theirs = (cells[f"time/{dimension}"][name]["seconds"] for name in (DEFAULT, peer))
    found = [
        one["share"] / other["share"] * b / a
        for one, other in zip(mixed(cells, dimension, DEFAULT), mixed(cells, dimension, peer), strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return Ratio(*statistics.quantiles(found, n=4))


def table(cells: Cells) -> str:
    """Return effective draws per second of all samplers (rows) in all dimensions, and ours over them."""
    rows = [["effective draws per CPU second, and ours over them", *(f"{d} dimensions" for d in DIMENSIONS)]]
    for name in samplers(cells):
        rows.append([name, *(entry(cells, d, name) for d in DIMENSIONS)])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def entry(cells: Cells, dimension: int, name: str) -> str:
    """Return an entry of the table: "≤" marks short runs, bold a ratio below the goal, a star a bias."""
    if name not in cells[f"time/{dimension}"]:
        return ""
    short = any(cell["share"] * cell["transitions"] < LEAST_TIMES for cell in mixed(cells, dimension, name))
    star = "*" if round(bias(cells, dimension, name), 3) > MAX_BIAS else ""
    text = f"{'≤ ' if short else ''}{rate(cells, dimension, name):,.0f}{star}"
    if name == DEFAULT:
        return text
    over = ratio(cells, dimension, name).median
    return f"{text}, **{over:.2f}**" if over < GOAL and name not in OURS else f"{text}, {over:.2f}"


def verdict(cells: Cells) -> str:
    """Return where the goal was missed."""
    found = [(ratio(cells, d, name).median, name, d) for d in DIMENSIONS for name in cells[f"time/{d}"]]
    missed = [f"{name} in {d} ({over:.2f})" for over, name, d in found if name not in OURS and over < GOAL]
    return f"not reached against {'; '.join(missed)}" if missed else "reached against every peer"


def biases(cells: Cells) -> str:
    """Return the biases of our default, and of all samplers beyond the limit."""
    mine = ", ".join(f"{bias(cells, d, DEFAULT):.3f}" for d in DIMENSIONS)
    others = [
        f"{name} in {d} ({bias(cells, d, name):.2f})"
        for d in DIMENSIONS
        for name in cells[f"time/{d}"]
        if name != DEFAULT and bias(cells, d, name) > MAX_BIAS
    ]
    return f"Ours: {mine}. Above {MAX_BIAS}: {'; '.join(others) or 'none'}."


def settings(cells: Cells) -> str:
    """Return the settings of every sampler; numbers that differ between dimensions follow one another."""
    lines = []
    for name in samplers(cells):
        found = [cells[f"time/{d}"][name]["settings"] for d in DIMENSIONS if name in cells[f"time/{d}"]]
        columns = zip(*(NUMBER.findall(one) for one in found), strict=True)
        numbers = [" / ".join(one if len(set(one)) > 1 else one[:1]) for one in columns]
        parts = zip_longest(NUMBER.split(found[0]), numbers, fillvalue="")
        lines.append(f"- {name}: {''.join(chain.from_iterable(parts))}.")
    return "\n".join(lines)

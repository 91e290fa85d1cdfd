"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). All samplers start from the same points, drawn from N(0, I),
half-way between the modes; ULA and MALA take the same step. What a chain's last draw says about the weights is worth no
more than the number of times the chains went from one mode to the other, so that number stands beside it.
"""

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scoremh import MALA, Always, Exact, RandomWalk, metropolis_hastings, plots, sample, targets, tune

TARGET = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
CHAINS, STEPS, SETTLING = 2000, 2000, 100
PRESETS = {"paper": (CHAINS, STEPS)}
WIDE_STD = 7.0  # half the distance between the modes, 10 sqrt(2): some candidates land in the other one


@dataclass(frozen=True)
class Row:
    """What one sampler gave."""

    sampler: str
    weight: float
    """Share of the last draws that are nearer to (5, 5); 0.8 is right."""
    weight_error: float
    """Standard error of that share over independent chains."""
    jumps: float | None
    """Moves from one mode to the other, per chain, after the first steps."""
    acceptance_rate: float | None
    variance: float
    """Of a coordinate around its mode; 1 is right."""


def nearer(x: Tensor) -> Tensor:
    """Return 0 for points nearer to (5, 5), 1 for the others."""
    return (x.sum(-1) < 0).long()


def describe(name: str, draws: Tensor, acceptance_rate: float | None = None) -> Row:
    """Measure draws `(chain, draw, 2)`; independent ones have no acceptance rate, and no jumps."""
    side, last = nearer(draws), draws[:, -1]
    weight = float((nearer(last) == 0).double().mean())
    jumps = None if acceptance_rate is None else float((side[:, 1:] != side[:, :-1]).sum(1).double().mean())
    centre = torch.where(nearer(last)[:, None] == 0, 5.0, -5.0)
    error = math.sqrt(weight * (1 - weight) / len(draws))
    return Row(name, weight, error, jumps, acceptance_rate, float((last - centre).square().mean()))


def figure(out: Path, *, seed: int = 0, progress: bool = True) -> list[Row]:
    """Run all samplers, print the table, and write `mixture.png` and `mixture.json` into a folder."""
    started, generator, console = time.monotonic(), torch.Generator().manual_seed(seed), Console()
    out.mkdir(parents=True, exist_ok=True)
    initial = torch.randn(CHAINS, 2, generator=generator)

    adjusted = partial(metropolis_hastings, TARGET, acceptance=Exact())
    step = tune(lambda h: adjusted(MALA(h)), initial[:500], generator=generator, progress=progress)
    samplers = {
        f"ULA, h = {step:.3g}": metropolis_hastings(TARGET, MALA(step), Always()),
        f"random walk, std {WIDE_STD:g}": adjusted(RandomWalk(WIDE_STD)),
        f"MALA, h = {step:.3g}": adjusted(MALA(step)),
    }
    fresh = TARGET.sample(CHAINS, generator=generator)
    rows, panels = [describe("original", fresh[:, None])], {"original": fresh}
    for name, kernel in samplers.items():
        chains = sample(
            kernel,
            initial,
            draws=STEPS - SETTLING,
            warmup=SETTLING,
            generator=generator,
            progress=progress,
            threads=os.cpu_count(),
        )
        rows.append(describe(name, chains.draws, chains.acceptance_rate))
        panels[name] = chains.last
    setting = (
        f"{CHAINS} chains of {STEPS} steps from N(0, I); ULA and MALA with step size h = {step:.3g}, tuned to MALA's "
        f"acceptance rate of 0.574; random walk with std {WIDE_STD:g}; seed {seed}"
    )
    plots.scatter_panels(
        panels,
        out / "mixture.png",
        captions=[caption(row) for row in rows],
        groups={name: nearer(points) for name, points in panels.items()},
        log_density=TARGET.log_density,
        title=f"Two modes of weights 0.8 and 0.2: the last draws of {CHAINS:,} chains that all start from N(0, I)",
    )
    results = {"setting": setting, "rows": [asdict(row) for row in rows]}
    (out / "mixture.json").write_text(json.dumps(results, indent=2))
    console.print(table(rows))
    console.print(setting)
    console.print(reading(rows))
    console.print(f"{out / 'mixture.png'} and {out / 'mixture.json'} written in {time.monotonic() - started:.0f} s")
    return rows


def caption(row: Row) -> str:
    """Say the weights and the jumps."""
    jumps = "independent draws" if row.jumps is None else f"{row.jumps:.2g} jumps per chain"
    return f"weights {row.weight:.2f}, {1 - row.weight:.2f}\n{jumps}"


def table(rows: list[Row]) -> Table:
    """Return the rows as a table for the terminal."""
    shown = Table(
        title="0.8 N((5, 5), I) + 0.2 N((-5, -5), I)",
        caption="weight of (5, 5): 0.8 is right; variance around a mode: 1 is right",
    )
    for column in ("", "weight", "jumps", "acceptance", "variance"):
        shown.add_column(column, justify="left" if not column else "right")
    for row in rows:
        weight, variance = f"{row.weight:.3f} +- {row.weight_error:.3f}", f"{row.variance:.3f}"
        moves = ("", "") if row.jumps is None else (f"{row.jumps:.3g}", f"{row.acceptance_rate:.3f}")
        shown.add_row(row.sampler, weight, *moves, variance)
    return shown


def reading(rows: list[Row]) -> str:
    """Say in words what the numbers show, from the numbers."""
    still = [row.sampler for row in rows if row.jumps is not None and row.jumps < 0.1]
    moving = [row.sampler for row in rows if row.jumps is not None and row.jumps >= 0.1]
    said = [
        f"Chains that jump ({'; '.join(moving) or 'none'}) find the weights; chains that stay in a mode "
        f"({'; '.join(still) or 'none'}) keep those of their start, with or without an accept step.",
    ]
    wide = [row for row in rows[1:] if abs(row.variance - 1) > 0.25]
    said += [f"{row.sampler} is biased within a mode: its variance is {row.variance:.2f} for 1." for row in wide]
    return " ".join(said)


def run(preset: str, out: Path, docs: Path | None = None, *, workers: int | None = None, as_is: bool = False) -> None:
    """Draw the figure and print its table.

    Args:
        preset: "paper", the only one: it takes seconds.
        out: Folder to write to.
        docs: Where to write instead.
        workers: Not used.
        as_is: Not used.
    """
    torch.set_num_threads(1)  # two-dimensional work is too small to share among torch's threads
    figure(out if docs is None else docs)

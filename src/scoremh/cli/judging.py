"""Draws beside rows: their distances with floors, as a table, a file, and a page."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scoremh import Chains, diagnostics, metrics
from scoremh._shared import checks
from scoremh._shared.progress import progress_bar
from scoremh.estimator import ScoreMH
from scoremh.estimator.diagnosis import mixing
from scoremh.report import Contents, ratio
from scoremh.report import write as page

__all__ = ["contents", "judged", "page", "table", "write"]

REPEATS = 5  # pairs of samples that give a floor
FEWEST = 20  # rows
NAMES = {"mala": "MALA", "rw": "RW", "pcn": "pCN"}


def judged(
    samples: Mapping[str, Tensor], rows: Tensor, points: int, *, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Return the distances of samples to rows, with the floor of each and the p-value of a two-sample test.

    Args:
        samples: By sampler, `(draw, *event)`.
        rows: `(row, *event)`, of which nothing was learned.
        points: To compare at most; the floor takes twice as many rows.
        seed: Of what is random in it.
        progress: Show a progress bar.
    """
    if len(rows) < FEWEST:
        fix = "Bring more, in a --reference."
        raise ValueError(checks.message(f"at least {FEWEST} rows to compare with", len(rows), fix))
    checks.count(points, "points")
    generator = torch.Generator().manual_seed(seed)
    measures: dict[str, Callable[[Tensor, Tensor], float]] = {
        "w1": metrics.w1,
        "w2": metrics.w2,
        "sliced_w2": partial(metrics.sliced_w2, generator=generator),
        "energy_distance": metrics.energy_distance,
        "mmd_squared": metrics.mmd_squared,
    }
    rows = rows[torch.randperm(len(rows), generator=generator)]
    n = min(points, len(rows) // 2, *map(len, samples.values()))
    found: dict[str, Any] = {"points": n, "floors": {}, "samplers": {name: {} for name in samples}}
    with progress_bar(len(measures) * (1 + len(samples)), "judging", unit="metrics", show=progress) as tick:
        for metric, measure in measures.items():
            floor = metrics.floor(rows, measure, n, repeats=REPEATS, generator=generator)
            found["floors"][metric] = [floor.mean, floor.spread]
            tick(1, metric)
            for name, draws in samples.items():
                finite = bool(draws[:n].isfinite().all())
                found["samplers"][name][metric] = measure(draws[:n], rows[:n]) if finite else None
                tick(1, metric)
    for name, draws in samples.items():
        test = partial(metrics.two_sample_test, generator=generator)
        found["samplers"][name]["p_value"] = test(draws[:n], rows[:n]).p_value if draws[:n].isfinite().all() else 0.0
    return found


def table(found: Mapping[str, Any]) -> str:
    """Draw the distances as a table, each with its multiple of the floor.

    Args:
        found: By `judged`.
    """
    floors = found["floors"]
    drawn = Table("", *floors, "p", title=f"{found['points']} points each", box=None, pad_edge=False)
    for name, values in found["samplers"].items():
        drawn.add_row(name, *(_cell(values[m], floors[m]) for m in floors), f"{values['p_value']:.3g}")
    drawn.add_row("floor: fresh rows", *(f"{mean:.3g} +- {spread:.1g}" for mean, spread in floors.values()), "")
    console = Console(width=140)
    with console.capture() as capture:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _cell(value: float | None, floor: Sequence[float]) -> str:
    if value is None:
        return "ran away"
    times = ratio(value, (floor[0], floor[1]))
    return f"{value:.3g}" if times is None else f"{value:.3g} ({times:.2g} x)"


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write what `judged` found."""
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def contents(
    model: ScoreMH,
    config: Mapping[str, Any],
    chains: Chains,
    rows: Tensor,
    shown: str,
    found: Mapping[str, Any] | None,
    samples: Mapping[str, Tensor] | None = None,
) -> Contents:
    """Gather what a report shows.

    Args:
        model: That drew.
        config: Of its run.
        chains: That it made.
        rows: To show beside them.
        shown: What these are.
        found: Their distances, by `judged`.
        samples: More than the chains' last draws, by sampler.
    """
    own = name_of(model)
    columns = config["columns"] or [f"x{i}" for i in range(math.prod(config["event"]))]
    summary = diagnostics.summary(chains)  # of these chains; the fit's own R-hat was of others
    said = [text for text in model.diagnose().warnings if not text.startswith("R-hat")]
    said += [*mixing(summary.table["r_hat"].ravel(), columns), *(t for t in summary.warnings if "R-hat" not in t)]
    if found is not None:
        said += [
            f"{'The draws' if name == 'draws' else name} can be told from the rows (p = {values['p_value']:.2g})."
            for name, values in found["samplers"].items()
            if values["p_value"] < 0.01
        ]
    about = {
        "command": config.get("command") or "ScoreMH(...).fit(...), in Python",
        "data": f"{config.get('data', 'rows in memory')}, {config.get('rows', '?')} rows of {len(columns)} columns",
        "shown beside the draws": f"{len(rows):,} {shown}",
        "sampler": f"{own}, step {model.step_size_:.3g}, {model.chain_steps} steps after the annealing",
        "chains": _words(chains),
        "what the fit found": str(model.diagnose()).splitlines()[0],
        "distances": "none yet: scoremh evaluate" if found is None else f"to {found['reference']}",
        "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
    }
    histories = {"score": model.score_.history}
    if model.acceptance_ is not None:
        histories["acceptance"] = model.acceptance_.history
    values = {} if found is None else found["samplers"]
    return Contents(
        title=f"{own}: {config.get('data', 'a run')}",
        about=about,
        columns=columns,
        data=rows,
        samples={own: chains.last} if samples is None else samples,
        chains=chains,
        histories=histories,
        metrics={own if name == "draws" else name: value for name, value in values.items()},
        floors={} if found is None else {name: (floor[0], floor[1]) for name, floor in found["floors"].items()},
        warnings=list(dict.fromkeys(said)),
    )


def _words(chains: Chains) -> str:
    n, kept = chains.draws.shape[:2]
    calls = f", {chains.score_calls / chains.moves:.3g} score calls per accepted move" if chains.moves else ""
    return f"{n:,}, {kept} draws of each kept; acceptance {chains.acceptance_rate:.3f}{calls}"


def name_of(model: ScoreMH) -> str:
    """Return what a sampler is called: Score MALA (potential), ULA."""
    sampler = model.sampler_
    return "ULA" if sampler.acceptance == "always" else f"Score {NAMES[sampler.proposal]} ({sampler.acceptance})"

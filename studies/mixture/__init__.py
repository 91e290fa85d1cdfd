"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). What a chain's last draw says about the weights is worth no more
than the number of times the chains went from one mode to the other, so that number stands beside it, and so does the
distribution the chains start from.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.framework.study import values
from studies.framework.tables import markdown, mean, over_seeds, pivot
from studies.learning import FIGURE_1
from studies.mixture.cells import BETWEEN, KINDS, LEARNED, SAMPLERS, START_LABELS, STARTS, Config, cells, mode

WEIGHT = 0.8
PAPER = {"ULA": 0.52, "RW": 0.79, "MALA": 0.79}  # weights of (5, 5); it states neither the start nor the steps
PAPER_SAMPLERS = {"ULA": "ULA", "RW": "RW", "narrow RW": "RW", "MALA": "MALA"}  # to the paper's
MAX_FROM_PAPER = 0.03  # what counts as the paper's number
MIN_JUMPS = 0.1  # jumps per chain from which on chains count as jumping
MAX_FROM_START = 0.1  # how far from the weight of their start chains may end that count as keeping it
MAX_VARIANCE_ERROR = 0.25  # how far off a variance within a mode is named
PRESETS = {"quick": Config(seeds=(11,), chains=300, steps=600), "paper": Config(seeds=(1, 2, 3))}


def complete_samplers(records: Records) -> list[str]:
    """Return the samplers that were run from every start."""
    return [name for name in SAMPLERS if all(records.where("chains", sampler=name, start=start) for start in STARTS)]


def mean_weight(records: Records, sampler: str, start: str) -> float:
    """Return the mean weight over seeds."""
    return mean(records.values("chains", "weight", sampler=sampler, start=start))


def finds_weights(records: Records, sampler: str, start: str) -> bool:
    """Return whether a weight is within three standard errors, of as many independent draws, of 0.8."""
    draws = records.settings["chains"] * len(records.where("chains", sampler=sampler, start=start))
    return abs(mean_weight(records, sampler, start) - WEIGHT) <= 3 * math.sqrt(WEIGHT * (1 - WEIGHT) / draws)


def starts_as_in_paper(records: Records, sampler: str, paper: str) -> list[str]:
    """Return the starts from which a sampler has the paper's weight."""
    return [s for s in STARTS if abs(mean_weight(records, sampler, s) - PAPER[paper]) <= MAX_FROM_PAPER]


def common_starts(records: Records) -> list[str]:
    """Return the starts that give the paper's weights for ULA and MALA both."""
    if not set(PAPER) <= set(complete_samplers(records)):
        return []
    ula, mala = (starts_as_in_paper(records, name, name) for name in ("ULA", "MALA"))
    return [start for start in ula if start in mala]


def least_and_largest(records: Sequence[Record], key: str) -> tuple[float, float]:
    """Return the least and the largest of a number."""
    return min(values(records, key)), max(values(records, key))


def jumping(records: Records, samplers: Sequence[str]) -> list[Record]:
    """Return what is said of every sampler whose chains jump."""
    return [
        {
            "label": SAMPLERS[name].label(records.settings),
            "jumps": least_and_largest(runs, "jumps"),
            "ends": least_and_largest(runs, "weight"),
            "starts": [START_LABELS[start] for start in STARTS if finds_weights(records, name, start)],
        }
        for name in samplers
        if max(values(runs := records.where("chains", sampler=name), "jumps")) >= MIN_JUMPS
    ]


def staying(records: Records, samplers: Sequence[str]) -> list[Record]:
    """Return what is said of the samplers whose chains stay in a mode, with true scores and with learned ones."""
    found = []
    for learned in (False, True):
        runs = {n: records.where("chains", sampler=n) for n in samplers if (n in LEARNED) == learned}
        still = {name: there for name, there in runs.items() if max(values(there, "jumps")) < MIN_JUMPS}
        every = [record for there in still.values() for record in there]
        if every:
            moved = max(abs(record["weight"] - record["start_weight"]) for record in every)
            labels = [SAMPLERS[name].label(records.settings) for name in still]
            one = {"learned": learned, "labels": labels, "moved": moved, "keeps": moved <= MAX_FROM_START}
            found.append(one | {"ends": least_and_largest(every, "weight")})
    return found


def weights_table(records: Records, samplers: Sequence[str]) -> str:
    """Return the weights by sampler and start, over seeds."""
    original = [over_seeds(records.values("original", "weight"))] * len(STARTS)
    frame = by_start(records, samplers, "weight", over_seeds)
    frame.insert(0, "the paper", [f"{PAPER[name]:g}" if name in PAPER else "" for name in samplers])
    first = frame.iloc[:1].copy()
    first.iloc[0], first.index = [f"{WEIGHT:g}", *original], ["original, independent draws"]
    return markdown(pd.concat([first, frame.rename(index=labels(records))]), "sampler")


def jumps_table(records: Records, samplers: Sequence[str]) -> str:
    """Return the jumps by sampler and start, and acceptance rates and variances of chains from between the modes."""
    frame = by_start(records, samplers, "jumps", lambda numbers: f"{mean(numbers):.2g}")
    for key in ("acceptance", "variance"):
        frame[key] = [f"{mean(records.values('chains', key, sampler=n, start=BETWEEN)):.3f}" for n in samplers]
    return markdown(frame.rename(index=labels(records)), "sampler")


def by_start(
    records: Records, samplers: Sequence[str], key: str, text: Callable[[Sequence[float]], str]
) -> pd.DataFrame:
    """Return a table of one number by sampler and start."""
    there = [record for record in records.kinds["chains"] if record["sampler"] in samplers]
    frame = pivot(there, "sampler", "start", key, text)
    return frame.rename(columns={start: f"from {label}" for start, label in START_LABELS.items()})


def labels(records: Records) -> dict[str, str]:
    """Return the samplers' names with their steps."""
    return {name: sampler.label(records.settings) for name, sampler in SAMPLERS.items()}


def numbers(records: Records) -> dict[str, Any]:
    """Return what the template needs."""
    every = complete_samplers(records)
    runs = {name: records.where("chains", sampler=name) for name in every}
    variances = {name: least_and_largest(there, "variance") for name, there in runs.items()}
    return {
        "weights": weights_table(records, every),
        "jumps": jumps_table(records, every),
        "jumping": jumping(records, every),
        "staying": staying(records, every),
        "biased": {
            labels(records)[name]: (low, high)
            for name, (low, high) in variances.items()
            if max(abs(low - 1), abs(high - 1)) > MAX_VARIANCE_ERROR
        },
        "returning": returning(records, every),
        "versus": versus(records) if set(PAPER) <= set(every) else None,
        "paper": PAPER,
        "all_starts": len(STARTS),
        "between": BETWEEN,
        "min_jumps": MIN_JUMPS,
        "max_from_paper": MAX_FROM_PAPER,
    }


def returning(records: Records, samplers: Sequence[str]) -> list[Record]:
    """Return the starts from which each of the paper's weights comes out."""
    return [
        {
            "label": labels(records)[name],
            "weight": PAPER[paper],
            "starts": [START_LABELS[start] for start in starts_as_in_paper(records, name, paper)],
        }
        for name, paper in PAPER_SAMPLERS.items()
        if name in samplers
    ]


def versus(records: Records) -> Record:
    """Return how ULA and MALA compare."""
    gaps = [abs(mean_weight(records, "ULA", start) - mean_weight(records, "MALA", start)) for start in STARTS]
    return {
        "starts": [START_LABELS[start] for start in common_starts(records)],
        "apart": max(gaps),
        "finds": finds_weights(records, "MALA", BETWEEN),
        "weight": mean_weight(records, "MALA", BETWEEN),
    }


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the first seed's last draws of chains from between the modes."""
    seed, chains, every = records.settings["seeds"][0], records.settings["chains"], complete_samplers(records)
    shown = {"original": records.where("original", seed=seed)[0]}
    for name in ("ULA", "RW", "MALA", "Score RW", "Score MALA"):
        for record in records.where("chains", sampler=name, start=BETWEEN, seed=seed) if name in every else []:
            shown[labels(records)[name]] = record
    points = {name: torch.tensor(record["points"]) for name, record in shown.items()}
    plots.scatter_panels(
        points,
        docs / "mixture.png",
        captions=[caption(record) for record in shown.values()],
        groups={name: mode(places) for name, places in points.items()},
        log_density=FIGURE_1.log_density,
        title=f"Two modes of weights 0.8 and 0.2: the last draws of {chains:,} chains from {BETWEEN}",
    )


def caption(record: Record) -> str:
    """Return weights and jumps as text."""
    jumps = f"{record['jumps']:.2g} jumps per chain" if "jumps" in record else "independent draws"
    return f"weights {record['weight']:.2f}, {1 - record['weight']:.2f}\n{jumps}"


def ula_misses(records: Records) -> bool:
    """Return whether there is a start from which ULA misses the weights as in the paper and MALA finds them."""
    return bool(common_starts(records))


STUDY = Study(
    "mixture",
    "the paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?",
    PRESETS,
    cells,
    KINDS,
    numbers,
    picture,
    {"ula_misses": Claim("ULA misses the relative weights where MALA finds them", ula_misses)},
)

"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). What a chain's last draw says about the weights is worth no more
than the number of times the chains went from one mode to the other, so that number stands beside it, and so does the
distribution the chains start from.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.framework.study import values
from studies.framework.tables import mean
from studies.learning import FIGURE_1
from studies.mixture.cells import BETWEEN, KINDS, LEARNED, SAMPLERS, START_LABELS, STARTS, Config, mode, stages

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
    """Return jumps, final weights, and the starts that find the weights, of every sampler whose chains jump."""
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


def biased(records: Records, samplers: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the least and the largest variance of samplers that are off, by label."""
    spans = {name: least_and_largest(records.where("chains", sampler=name), "variance") for name in samplers}
    off = {name: span for name, span in spans.items() if max(abs(one - 1) for one in span) > MAX_VARIANCE_ERROR}
    return {labels(records)[name]: span for name, span in off.items()}


def labels(records: Records) -> dict[str, str]:
    """Return the samplers' names with their steps."""
    return {name: sampler.label(records.settings) for name, sampler in SAMPLERS.items()}


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
    stages,
    KINDS,
    picture,
    globals(),
    {"ula_misses": Claim("ULA misses the relative weights where MALA finds them", ula_misses)},
)

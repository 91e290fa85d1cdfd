"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). What a chain's last draw says about the weights is worth no more
than the number of times the chains went from one mode to the other, so that number stands beside it, and so does the
distribution the chains start from.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.framework.study import values, with_kept_cells
from studies.framework.tables import mean
from studies.learning import FIGURE_1
from studies.mixture.cells import (
    BETWEEN,
    KINDS,
    LEARNED,
    SAMPLERS,
    START_LABELS,
    STARTS,
    TRAINED,
    Config,
    mode,
    stages,
)

WEIGHT = 0.8
PAPER = {"ULA": 0.52, "RW": 0.79, "MALA": 0.79}  # weights of (5, 5); it states neither the start nor the steps
PAPER_SAMPLERS = {"ULA": "ULA", "RW": "RW", "narrow RW": "RW", "MALA": "MALA"}  # to the paper's
MAX_FROM_PAPER = 0.03  # what counts as the paper's number
MIN_JUMPS = 0.1  # jumps per chain from which on chains count as jumping
MAX_FROM_START = 0.1  # how far from the weight of their start chains may end that count as keeping it
MAX_VARIANCE_ERROR = 0.25  # how far off a variance within a mode is named
MAX_LATE_ERROR = 0.01  # of the weight by anchored acceptances
PICTURED = ("ULA", "RW", "MALA", "Score RW", "anchored", "through noise", "replica exchange")
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
    """Return the statement on samplers whose chains stay in a mode, with true and with learned scores."""
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
    seed, chains = records.settings["seeds"][0], records.settings["chains"]
    originals = records.where("original", seed=seed)
    if not originals:
        return  # a run of other seeds leaves the picture as it is
    shown = {"original": originals[0]}
    for name in PICTURED:
        for record in records.where("chains", sampler=name, start=BETWEEN, seed=seed):
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


def learned_finds_weights(records: Records) -> dict[str, bool]:
    """Return which rows with a learned score find the weights, from every start."""
    there = [name for name in complete_samplers(records) if name in LEARNED]
    return {labels(records)[n]: all(finds_weights(records, n, start) for start in STARTS) for n in there}


def late_weights(records: Records) -> list[Record]:
    """Return the weight by the later half of all draws from all starts, for every seed, of rows that know values."""
    found = []
    for name in complete_samplers(records):
        if name in LEARNED and (SAMPLERS[name].anchored or name not in TRAINED):
            runs = records.where("chains", sampler=name)
            by_seed = [values([r for r in runs if r["seed"] == seed], "late_weight") for seed in seeds_of(runs)]
            trainings = records.values("acceptance", "seconds", sampler=name) if name in TRAINED else []
            found.append({"label": labels(records)[name], "seeds": [*map(mean, by_seed)], "training": trainings})
    return found


def seeds_of(records: Sequence[Record]) -> list[int]:
    """Return the seeds of records."""
    return sorted({record["seed"] for record in records})


def older(records: Records) -> list[str]:
    """Return the rows some of whose chains are kept from before late weights were measured."""
    old = {record["sampler"] for record in records.kinds["chains"] if "late_weight" not in record}
    return [labels(records)[name] for name in SAMPLERS if name in old]


def fewer_seeds(records: Records) -> list[str]:
    """Return the rows that have not all seeds, with the number of those they have."""
    counts = {name: len(seeds_of(records.where("chains", sampler=name))) for name in complete_samplers(records)}
    every = len(records.settings["seeds"])
    return [f"{labels(records)[name]} ({count})" for name, count in counts.items() if count < every]


def late_error(weights: Sequence[float]) -> float:
    """Return how far the farthest of these weights is from the true one."""
    return max(abs(weight - WEIGHT) for weight in weights)


STUDY = Study(
    "mixture",
    "the paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?",
    PRESETS,
    stages,
    KINDS,
    picture,
    globals(),
    {
        "ula_misses": Claim("ULA misses the relative weights where MALA finds them", ula_misses),
        "learned": Claim("with a learned score, the weights are found from every start", learned_finds_weights),
    },
    carried_over=partial(with_kept_cells, KINDS),
    partial=True,
    shows_draws=True,
)

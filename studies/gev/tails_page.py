"""What covers the 99.9 % quantile of GEV(0, 1, 0.5): the section and the picture."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.gev import common, tails
from studies.gev.tails import (
    HEAVY,
    LANGEVIN,
    LEARNED,
    PAPER,
    PROPOSALS,
    SHARES,
    STUDENT,
    Chains,
    Config,
    Samples,
    Score,
)

MAX_ERROR = 0.1  # relative error of the 99.9 % quantile
PRESETS = {
    "quick": Config(seeds=(11,), sizes=(10_000,), chains=2000, warmup=200, draws=5, thin=20),
    "paper": Config(seeds=(1, 2, 3)),
}


def ratios_at(records: Records, score: str, size: int, key: str) -> list[float]:
    """Return how steep scores are at a quantile, as a share of the true one, where trainings did not diverge."""
    there = [record for record in records.where("score", score=score, size=size) if "diverged" not in record]
    return [record[f"ratio at {key}"] for record in there]


def is_covered(numbers: Sequence[float]) -> bool:
    """Return whether the mean size of the relative errors over seeds is within a tenth."""
    return bool(numbers) and statistics.mean(abs(value) for value in numbers) <= MAX_ERROR


def covered_by_chains(records: Records, score: str, size: int) -> list[str]:
    """Return the proposals with which chains with a score cover the quantile."""
    return [
        move
        for move in PROPOSALS
        if is_covered(records.values("chains", "q999", score=score, proposal=move, size=size))
    ]


def paper_covers(records: Records) -> dict[str, bool]:
    """Return by number of samples whether the paper's setting covers the quantile: its score, MALA with its step."""
    return {str(size): LANGEVIN in covered_by_chains(records, PAPER, size) for size in records.settings["sizes"]}


def covering_scores(records: Records, size: int) -> list[str]:
    """Return the scores learned from so many samples that cover the quantile when integrated."""
    return [kind for kind in LEARNED if is_covered(records.values("score", "q999", score=kind, size=size))]


def covering_chains(records: Records, size: int) -> list[str]:
    """Return the scores and proposals whose chains cover the quantile."""
    return [f"{kind} with {move}" for kind in LEARNED for move in covered_by_chains(records, kind, size)]


def curve(places: Sequence[float], heights: Sequence[float | None]) -> plots.Curve:
    """Return a curve with gaps at values that a logarithmic axis cannot show."""
    return places, [math.nan if y is None or y <= 0 else y for y in heights]


def curves_beyond(records: Sequence[Record], scores: Sequence[str], places: Sequence[float]) -> dict[str, plots.Curve]:
    """Return what share of the draws lies beyond x, of chains with some scores that did not diverge."""
    there = [record for record in records if record["score"] in scores and "survival" in record]
    return {f"{r['score']}, {r['proposal']}": curve(places, r["survival"]) for r in there}


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw what share of the draws lies beyond x, and how steep the scores are there."""
    xi, size, seed = records.settings["xi"], records.settings["sizes"][-1], records.settings["seeds"][0]
    places = [float(v) for v in common.quantile(1 - SHARES, xi)]
    own = curve(places, records.where("samples", size=size, seed=seed)[0]["survival"])
    always: dict[str, plots.Curve] = {"exact": (places, list(SHARES)), "samples": own}
    ratios = {r["score"]: r["ratios"] for r in records.where("score", size=size, seed=seed) if "ratios" in r}
    scores = curves_beyond(records.where("chains", size=size, seed=seed, proposal=STUDENT), LEARNED, places)
    moves = curves_beyond(records.where("chains", size=size, seed=seed, score=HEAVY), LEARNED, places)
    beyond = "share of draws beyond x: "
    panels = {
        f"{beyond}scores, with a Student walk": always | scores,
        f"{beyond}proposals, with the heavy-tailed score": always | moves,
        "learned score / true score": {
            "exact": (places, [1.0] * len(places)),
            **{f"{score}, {STUDENT}": curve(places, found) for score, found in ratios.items()},
        },
    }
    title = f"The tail of GEV(0, 1, {xi:g}), learned from {size:,} samples, seed {seed}"
    families = {f"{score}, {move}": (score, move) for score in LEARNED for move in PROPOSALS} | {
        "exact": ("exact", ""),
        "samples": ("exact", "samples"),
    }
    path = docs / "gev-tails.png"
    plots.curve_panels(panels, path, labels=("x", ""), log=True, shared=False, families=families, title=title)


STUDY = Study(
    "gev-tails",
    "beyond the paper's heavy tails: which score and which proposal cover the 99.9 % quantile of GEV(0, 1, 0.5)?",
    PRESETS,
    tails.stages,
    (Samples, Score, Chains),
    picture,
    vars(common) | vars(tails) | globals(),
    {"paper_covers": Claim("the paper's score and MALA with its step cover the 99.9 % quantile", paper_covers)},
    shows_draws=True,
)

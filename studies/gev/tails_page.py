"""What covers the 99.9 % quantile of GEV(0, 1, 0.5): the section and the picture."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies import plots
from studies.framework import Claim, Record, Records, Study
from studies.framework.tables import table
from studies.gev import common
from studies.gev.common import METRICS, TAILS
from studies.gev.tails import (
    DEFAULT,
    HEAVY,
    KNOWN,
    LANGEVIN,
    LEARNED,
    PAPER,
    PLACES,
    PROPOSALS,
    SHARES,
    STUDENT,
    TRUE,
    Chains,
    Config,
    Samples,
    Score,
    cells,
)

MAX_ERROR = 0.1  # relative error of the 99.9 % quantile
PRESETS = {
    "quick": Config(seeds=(11,), sizes=(10_000,), chains=2000, warmup=200, draws=5, thin=20),
    "paper": Config(seeds=(1, 2, 3)),
}


def errors_table(records: Records, key: str) -> str:
    """Return the errors of one quantile by score, number of samples and proposal."""
    rows = []
    for score, size in [(score, size) for size in records.settings["sizes"] for score in LEARNED] + [
        (score, 0) for score in KNOWN
    ]:
        chains = {m: records.values("chains", key, score=score, proposal=m, size=size) for m in PROPOSALS}
        rows.append(
            {
                f"{METRICS[key]}: score": score,
                "samples": f"{size:,}" if size else "",
                "samples' own": common.percent(records.values("samples", key, size=size)),
                "integrated": common.percent(records.values("score", key, score=score, size=size)),
                **{move: common.percent(numbers) for move, numbers in chains.items()},
            }
        )
    return table(rows)


def ratios_table(records: Records) -> str:
    """Return how steep learned scores are, as a share of the true one."""
    rows = []
    for size in records.settings["sizes"]:
        for score in LEARNED:
            there = [r for r in records.where("score", score=score, size=size) if "diverged" not in r]
            ratios = {share: [r[f"ratio at {key}"] for r in there] for key, share in TAILS.items()}
            texts = {f"at the {share:.1%} quantile": common.mean_and_spread(found) for share, found in ratios.items()}
            rows.append({"score": score, "samples": f"{size:,}", **texts})
    return table(rows)


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


def findings(records: Records, size: int) -> Record:
    """Return which scores and chains from so many samples cover the quantile."""
    own = records.values("samples", "q999", size=size)
    scores = [kind for kind in LEARNED if is_covered(records.values("score", "q999", score=kind, size=size))]
    chains = [f"{kind} with {move}" for kind in LEARNED for move in covered_by_chains(records, kind, size)]
    return {"size": size, "own": statistics.mean(map(abs, own)), "scores": scores, "chains": chains}


def numbers(records: Records) -> dict[str, Any]:
    """Return what the template needs."""
    given = records.settings
    xi, size = given["xi"], given["sizes"][0]
    far = float(common.quantile(TAILS["q999"], xi))
    return {
        "quantiles": {key: float(common.quantile(share, xi)) for key, share in TAILS.items()},
        "steps": given["warmup"] + given["draws"] * given["thin"],
        "names": {"paper": PAPER, "default": DEFAULT, "heavy": HEAVY},
        "noise": [record["q999 noise"] for record in records.where("chains", score=TRUE, proposal=STUDENT)],
        "tables": [errors_table(records, key) for key in TAILS],
        "ratios": ratios_table(records),
        "findings": [findings(records, size) for size in given["sizes"]],
        "with_true_score": covered_by_chains(records, TRUE, 0),
        "goal": MAX_ERROR,
        "steps_needed": far**2 / (2 * given["step_size"]),
        "standard_error": xi / math.sqrt(0.001 * size),
    }


def curve(places: Sequence[float], heights: Sequence[float | None]) -> plots.Curve:
    """Return a curve with gaps where there is nothing to show on a logarithmic axis."""
    return places, [math.nan if y is None or y <= 0 else y for y in heights]


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw what share of the draws lies beyond x, and how steep the scores are there."""
    xi, size, seed = records.settings["xi"], records.settings["sizes"][-1], records.settings["seeds"][0]
    places = [float(v) for v in common.quantile(1 - SHARES, xi)]

    def tail(score: str, move: str) -> plots.Curve:
        there = records.where("chains", score=score, proposal=move, size=size, seed=seed)
        return curve(places, there[0]["survival"]) if there and "survival" in there[0] else ([], [])

    own = curve(places, records.where("samples", size=size, seed=seed)[0]["survival"])
    always: dict[str, plots.Curve] = {"exact": (places, list(SHARES)), "samples": own}
    ratios = {r["score"]: r["ratios"] for r in records.where("score", size=size, seed=seed) if "ratios" in r}
    scores = {f"{score}, {STUDENT}": tail(score, STUDENT) for score in LEARNED}
    moves = {f"{HEAVY}, {move}": tail(HEAVY, move) for move in PROPOSALS}
    beyond = "share of draws beyond x: "
    panels = {
        f"{beyond}scores, with a Student walk": always | {f"{s}, {STUDENT}": tail(s, STUDENT) for s in LEARNED},
        f"{beyond}proposals, with the heavy-tailed score": always
        | {f"{HEAVY}, {m}": tail(HEAVY, m) for m in PROPOSALS},
        "learned score / true score": {
            "exact": (places, [1.0] * PLACES),
            **{f"{score}, {STUDENT}": curve(places, found) for score, found in ratios.items()},
        },
    }
    title = f"The tail of GEV(0, 1, {xi:g}), learned from {size:,} samples, seed {seed}"
    path = docs / "gev-tails.png"
    plots.curve_panels(panels, path, labels=("x", ""), log=True, shared=False, title=title)


STUDY = Study(
    "gev-tails",
    "beyond the paper's heavy tails: which score and which proposal cover the 99.9 % quantile of GEV(0, 1, 0.5)?",
    PRESETS,
    cells,
    (Samples, Score, Chains),
    numbers,
    picture,
    {"paper_covers": Claim("the paper's score and MALA with its step cover the 99.9 % quantile", paper_covers)},
)

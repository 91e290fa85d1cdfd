"""Is the verdict of a fit right? Good fits and deliberately poor ones, judged on their rows and by fresh ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sklearn.cluster import KMeans
from torch import Tensor

from scoremh import ScoreMH, metrics
from scoremh.estimator.diagnosis import check_draws
from scoremh.evaluation import LEVELS, standard, transport_distance, tree_auc
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.verdicts.laws import LAWS

FITS = ("good", "short", "poor", "coded")
TENSORS, MODEL = "draws.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (11, 12)
    rows: int = 2000  # of which a tenth is held out
    draws: int = 1000  # that the verdict is on
    others: int = 2000  # draws that the truth is measured with
    short_steps: int = 500
    poor_steps: int = 40


def drawn(law: str, fit: str, n: int, generator: torch.Generator) -> Tensor:
    """Return fresh rows of a distribution; for a fit of codes the first column has the numbers of 40 codes."""
    rows = LAWS[law][1](n, generator)
    if fit != "coded":
        return rows
    place = torch.searchsorted(_edges(law), rows[:, 0].contiguous())
    return torch.cat([_codes()[place][:, None], rows[:, 1:]], 1)


@cache
def _edges(law: str) -> Tensor:
    """Return quantiles of the first column, between which it has one code."""
    many = LAWS[law][1](20_000, torch.Generator().manual_seed(8))[:, 0]
    return many.quantile(torch.linspace(0, 1, CODES + 1)[1:-1]).contiguous()


@cache
def _codes() -> Tensor:
    """Return numbers without order, such as those of articles or places."""
    return 1000 + 7.0 * torch.randperm(300, generator=torch.Generator().manual_seed(9))[:CODES]


class Fitted(Cell, kind="fitted"):
    """A fit with all defaults, of few training steps or very few, or of a column of codes, and its draws."""

    law: str
    seed: int
    fit: str  # "good", "short", "poor" or "coded"

    def path(self, folder: Path, name: str) -> Path:
        """Return a file of this cell."""
        return folder / f"{self.law} {self.seed} {self.fit} {name}"

    def measure(self, config: Config, folder: Path) -> Record:
        generator = torch.Generator().manual_seed(1000 * self.seed)
        rows = drawn(self.law, self.fit, config.rows, generator)
        steps = {"short": config.short_steps, "poor": config.poor_steps}.get(self.fit)
        model = ScoreMH(score_steps=steps, verbose=False, random_state=self.seed).fit(rows.numpy())
        draws = model.sample_chains(config.draws + config.others, draws=1, random_state=self.seed + 1).last
        held_out = torch.from_numpy(model.held_out_)
        seen = rows[~(rows[:, None] == held_out[None]).all(2).any(1)]
        numbers = {"draws": draws, "seen": seen, "held_out": held_out}
        points = {name: model.table_.coordinates(one.numpy(), generator).float() for name, one in numbers.items()}
        save_file({name: one.contiguous() for name, one in points.items()}, self.path(folder, TENSORS))
        model.save(self.path(folder, MODEL))
        return {"steps_made": model.score_.history["step"][-1], "verdict": model.diagnosis_.verdict.level}


def shuffled(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws whose last coordinate is that of others."""
    order = torch.randperm(len(draws), generator=generator)
    return torch.cat([draws[:, :-1], draws[order, -1:]], 1)


def dropped(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws without one of three clusters, as many as before."""
    labels = torch.from_numpy(KMeans(3, n_init=4, random_state=0).fit_predict(draws.numpy()))
    left = draws[labels != labels.bincount().argsort()[1]]  # the one of middle size
    return left[torch.randint(len(left), (len(draws),), generator=generator)]


def leaking(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws of which 3 % are in a false mode, five standard deviations from the centre."""
    count, width = round(0.03 * len(draws)), draws.shape[1]
    place = torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
    leaked = draws.mean(0) + draws.std(0) * (5 * place + 0.2 * torch.randn(count, width, generator=generator))
    return torch.cat([leaked, draws[count:]])[torch.randperm(len(draws), generator=generator)]


def shifted(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Return draws whose first coordinate is moved by 0.4 standard deviations."""
    return torch.cat([draws[:, :1] + 0.4 * draws[:, :1].std(), draws[:, 1:]], 1)


DEFECTS: dict[str, tuple[str, Callable[[Tensor, torch.Generator], Tensor] | None]] = {
    "perfect": ("fresh rows", None),
    "good": ("the fit", None),
    "short": ("500 training steps", None),
    "poor": ("40 training steps", None),
    "coded": ("a column of codes", None),
    "copied": ("training rows", None),
    "shifted": ("a shifted column", shifted),
    "shuffled": ("a shuffled column", shuffled),
    "dropped": ("a dropped mode", dropped),
    "leaking": ("3 % in a false mode", leaking),
}
BATCH, REPEATS = 1000, 6  # points that are compared at a time; samples of fresh rows that a floor is averaged over
MOST_SHOWN = 20.0  # W1 over its floor in the picture
LIMITS = {"w1_ratio": 1.15, "c2st_excess": 0.02, "beyond_excess": 0.005, "trees_excess": 0.1}  # of a good sampler
CODES = 40


class Judged(Cell, kind="judged"):
    """The verdict of the front door on draws of a fit, and the truth.

    Draws are spoiled in the coordinates of the score, so that they stay what draws can be.
    """

    law: str
    seed: int
    defect: str

    def measure(self, config: Config, folder: Path) -> Record:
        fit = self.defect if self.defect in FITS else "good"
        fitted = Fitted(self.law, self.seed, fit)
        kept = load_file(fitted.path(folder, TENSORS))
        model = ScoreMH.load(fitted.path(folder, MODEL))
        generator = torch.Generator().manual_seed(1000 * self.seed + 1)
        change = DEFECTS[self.defect][1]
        draws = kept["draws"] if change is None else change(kept["draws"], generator)
        count = config.draws + config.others
        if self.defect == "perfect":
            draws = model.table_.coordinates(drawn(self.law, fit, count, generator).numpy(), generator).float()
        if self.defect == "copied":
            draws = kept["seen"][torch.randint(len(kept["seen"]), (count,), generator=generator)]
        rows, held = torch.cat([kept["held_out"], kept["seen"]]), len(kept["held_out"])
        some, numbers = draws[: config.draws], model.table_.numbers
        parts = model.sampler_, some
        names = list(model.table_.names)
        found = check_draws(*parts, rows, held, names, numbers, generator)
        more: Record = {}
        if self.defect in ("good", "perfect"):  # the same draws against other rows
            fresh = model.table_.coordinates(drawn(self.law, fit, config.rows, generator).numpy(), generator).float()
            others = {"verdict_held": kept["held_out"], "verdict_fresh": fresh}
            more = {
                name: check_draws(*parts, one, len(one), names, numbers, generator).verdict.level
                for name, one in others.items()
            }
        values = {f"{one.name}_{key}": getattr(one, key) for one in found.checks for key in ("value", "p_value")}
        truly = truth(numbers(draws[config.draws :]).float(), self.law, fit, numbers(rows).float(), generator)
        if self.defect == "copied":
            truly["passes"] = False  # W1 to fresh rows cannot see it
        return truly | {"verdict": found.verdict.level, "reason": found.verdict.reason} | more | values


def distances(draws: Tensor, law: str, fit: str, generator: torch.Generator) -> dict[str, float]:
    """Return distances between draws and fresh rows, in batches: W1, and the success of two classifiers."""
    found: dict[str, list[float]] = {"w1": [], "c2st": [], "trees": []}
    for batch in draws.split(BATCH):
        fresh = drawn(law, fit, 2 * BATCH, generator).double().numpy()
        u, v = standard(batch.double().numpy(), fresh)
        found["w1"] += [transport_distance(u, v[:BATCH]), transport_distance(u, v[BATCH:])]
        tensors = torch.from_numpy(u), torch.from_numpy(v[:BATCH])
        found["c2st"].append(metrics.c2st(*tensors, generator=torch.Generator().manual_seed(0)))
    found["trees"] = [tree_auc(draws.double().numpy(), drawn(law, fit, len(draws), generator).double().numpy())]
    return {name: mean(values) for name, values in found.items()}


@cache
def floors(law: str, fit: str, n: int) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of the same distances of draws that are fresh rows."""
    generator = torch.Generator().manual_seed(7)
    each = [distances(drawn(law, fit, n, generator), law, fit, generator) for _ in range(REPEATS)]
    return {name: (mean(values), stdev(values)) for name in each[0] if (values := [one[name] for one in each])}


def truth(draws: Tensor, law: str, fit: str, rows: Tensor, generator: torch.Generator) -> Record:
    """Return how far draws are from fresh rows, and whether a limit is exceeded by more than chance."""
    found, floor = distances(draws, law, fit, generator), floors(law, fit, len(draws))
    fresh, low, high = drawn(law, fit, 20 * BATCH, generator), rows.amin(0), rows.amax(0)
    beyond = [float(((part < low) | (part > high)).any(1).double().mean()) for part in (draws, fresh)]
    shares = {
        "w1_ratio": found["w1"] / floor["w1"][0],
        "c2st_excess": found["c2st"] - floor["c2st"][0],
        "trees_excess": found["trees"] - floor["trees"][0],
        "beyond_excess": beyond[0] - beyond[1],
    }
    chance = {
        "w1_ratio": max(LIMITS["w1_ratio"], 1 + 2 * floor["w1"][1] / floor["w1"][0]),
        "c2st_excess": LIMITS["c2st_excess"] + 2 * floor["c2st"][1],
        "trees_excess": LIMITS["trees_excess"],
        "beyond_excess": LIMITS["beyond_excess"] + 2 * math.sqrt(beyond[1] / len(draws)),
    }
    return shares | {"passes": all(shares[name] <= limit for name, limit in chance.items())}


def stages(config: Config) -> list[list[Cell]]:
    """Return fits and, after them, verdicts, law by law; one column has nothing to be shuffled against."""
    found: list[list[Cell]] = []
    for seed, law in product(config.seeds, LAWS):
        each: dict[str, Any] = {"seed": [seed], "law": [law]}
        found.append(grid(Fitted, **each, fit=FITS))
        found.append(grid(Judged, **each, defect=DEFECTS))
    return found


def right(record: Record) -> bool:
    """Return whether a verdict is right: "good" keeps all limits, "do not use" breaks one; others may do either."""
    return record["verdict"] not in ("good", "do not use") or bool((record["verdict"] == "good") == record["passes"])


def flips(records: list[Record]) -> list[Record]:
    """Return the draws that are "good" against some rows and "do not use" against others."""
    keys = "verdict", "verdict_held", "verdict_fresh"
    return [one for one in records if {"good", "do not use"} <= {one.get(key) for key in keys}]


def counts(records: list[Record], defect: str) -> dict[str, int]:
    """Return how often each verdict was given, how often all limits were kept, and how often the verdict was right."""
    mine = [one for one in records if one["defect"] == defect]
    found = {level: sum(one["verdict"] == level for one in mine) for level in LEVELS}
    return found | {"passes": sum(one["passes"] for one in mine), "right": sum(map(right, mine)), "all": len(mine)}


def share_right(records: list[Record]) -> float:
    """Return the share of verdicts that are right."""
    return mean([float(right(one)) for one in records])


def decided(records: list[Record]) -> list[Record]:
    """Return the verdicts that are "good" or "do not use"."""
    return [one for one in records if one["verdict"] in ("good", "do not use")]


def wrong(records: list[Record]) -> list[Record]:
    """Return the verdicts that are wrong."""
    return [one for one in records if not right(one)]


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the true W1 of every fit that was judged, by what the verdict said."""
    rows: dict[str, dict[str, list[float]]] = {}
    for record in records.where("judged"):
        rows.setdefault(LAWS[record["law"]][0], {}).setdefault(record["verdict"], []).append(
            min(record["w1_ratio"], MOST_SHOWN)
        )
    label = f"true W1 over the floor of fresh rows ({MOST_SHOWN:g}: or more)"
    plots.dot_rows(rows, docs / "verdicts.png", label=label, level=LIMITS["w1_ratio"])


CLAIMS = {
    "right": Claim(
        "at least 95 % of the verdicts good and do not use are right",
        lambda records: share_right(decided(list(records.kinds["judged"]))) >= 0.95,
    )
}
STUDY = Study(
    "verdicts",
    "whether the verdict on a fit is right, on good fits and on deliberately poor ones",
    Config(),
    stages,
    picture,
    globals(),
    CLAIMS,
    page="verdicts.md",
)

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
from scoremh.evaluation import LEVELS, standard, transport_distance
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.verdicts.laws import DEVELOPED_ON, LAWS

STEPS = ("good", "short", "poor")
TENSORS, MODEL = "draws.safetensors", "model.safetensors"


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2)
    rows: int = 2000  # of which a tenth is held out
    draws: int = 1000  # that the verdict is on
    others: int = 2000  # draws that the truth is measured with
    score_steps: int = 8000  # the estimator's own limit
    short_steps: int = 1500
    poor_steps: int = 40
    annealing_steps: int = 20  # these two are the estimator's own, too
    chain_steps: int = 300


PRESETS = {"paper": Config()}


class Fitted(Cell, kind="fitted"):
    """A fit of the usual settings, or of few training steps or very few, and its draws."""

    law: str
    seed: int
    steps: str  # "good", "short" or "poor"

    def path(self, folder: Path, name: str) -> Path:
        """Return a file of this cell."""
        return folder / f"{self.law} {self.seed} {self.steps} {name}"

    def measure(self, config: Config, folder: Path) -> Record:
        generator = torch.Generator().manual_seed(1000 * self.seed)
        rows = LAWS[self.law][1](config.rows, generator)
        steps = {"good": config.score_steps, "short": config.short_steps, "poor": config.poor_steps}[self.steps]
        chain: dict[str, Any] = {name: getattr(config, name) for name in ("annealing_steps", "chain_steps")}
        model = ScoreMH(acceptance="simpson", score_steps=steps, **chain, verbose=False, random_state=self.seed)
        model.fit(rows.numpy())
        draws = model.sample_chains(config.draws + config.others, draws=1, random_state=self.seed + 1).last
        held_out = torch.from_numpy(model.held_out_)
        seen = rows[~(rows[:, None] == held_out[None]).all(2).any(1)]
        numbers = {"draws": draws, "seen": seen, "held_out": held_out}
        points = {name: model.table_.coordinates(one.numpy(), generator).float() for name, one in numbers.items()}
        save_file({name: one.contiguous() for name, one in points.items()}, self.path(folder, TENSORS))
        model.save(self.path(folder, MODEL))
        return {"steps_made": model.score_.history["step"][-1], "level": model.noise_level_}


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


DEFECTS: dict[str, tuple[str, Callable[[Tensor, torch.Generator], Tensor] | None]] = {
    "perfect": ("fresh rows", None),
    "good": ("the fit", None),
    "short": ("1,500 training steps", None),
    "poor": ("40 training steps", None),
    "shuffled": ("a shuffled column", shuffled),
    "dropped": ("a dropped mode", dropped),
    "leaking": ("3 % in a false mode", leaking),
}
BATCH, REPEATS = 1000, 8  # points that are compared at a time; samples of fresh rows that a floor is averaged over
MOST_SHOWN = 20.0  # W1 over its floor in the picture
LIMITS = {"w1_ratio": 1.15, "c2st_excess": 0.02, "beyond_excess": 0.005}  # what a good sampler keeps


class Judged(Cell, kind="judged"):
    """The verdict of the front door on draws of a fit, and the truth.

    Draws are spoiled in the coordinates of the score, so that they stay what draws can be.
    """

    law: str
    seed: int
    defect: str

    def measure(self, config: Config, folder: Path) -> Record:
        fitted = Fitted(self.law, self.seed, self.defect if self.defect in STEPS else "good")
        kept = load_file(fitted.path(folder, TENSORS))
        model = ScoreMH.load(fitted.path(folder, MODEL))
        generator = torch.Generator().manual_seed(1000 * self.seed + 1)
        change = DEFECTS[self.defect][1]
        draws = kept["draws"] if change is None else change(kept["draws"], generator)
        if self.defect == "perfect":
            fresh = LAWS[self.law][1](config.draws + config.others, generator)
            draws = model.table_.coordinates(fresh.numpy(), generator).float()
        rows = torch.cat([kept["held_out"], kept["seen"]])
        names = [f"x{i}" for i in range(model.n_features_in_)]
        some, numbers = draws[: config.draws], model.table_.numbers
        found = check_draws(model.sampler_, some, rows, len(kept["held_out"]), names, numbers, generator)
        said = found.verdict
        values = {f"{one.name}_{key}": getattr(one, key) for one in found.checks for key in ("value", "p_value")}
        others = numbers(draws[config.draws :]).float()
        truly = truth(others, self.law, numbers(rows).float(), generator)
        return truly | {"verdict": said.level, "reason": said.reason} | values


def distances(draws: Tensor, law: str, generator: torch.Generator) -> dict[str, float]:
    """Return W1 and the accuracy of a classifier between draws and fresh rows, in batches, in standard coordinates."""
    found: dict[str, list[float]] = {"w1": [], "c2st": []}
    for batch in draws.split(BATCH):
        fresh = LAWS[law][1](2 * BATCH, generator).double().numpy()
        u, v = standard(batch.double().numpy(), fresh)
        found["w1"] += [transport_distance(u, v[:BATCH]), transport_distance(u, v[BATCH:])]
        tensors = torch.from_numpy(u), torch.from_numpy(v[:BATCH])
        found["c2st"].append(metrics.c2st(*tensors, generator=torch.Generator().manual_seed(0)))
    return {name: mean(values) for name, values in found.items()}


@cache
def floors(law: str, n: int) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of the same distances of draws that are fresh rows."""
    generator = torch.Generator().manual_seed(7)
    each = [distances(LAWS[law][1](n, generator), law, generator) for _ in range(REPEATS)]
    return {name: (mean(values), stdev(values)) for name in each[0] if (values := [one[name] for one in each])}


def truth(draws: Tensor, law: str, rows: Tensor, generator: torch.Generator) -> Record:
    """Return how far draws are from fresh rows, and whether a limit is exceeded by more than chance."""
    found, floor = distances(draws, law, generator), floors(law, len(draws))
    fresh, low, high = LAWS[law][1](20 * BATCH, generator), rows.amin(0), rows.amax(0)
    beyond = [float(((part < low) | (part > high)).any(1).double().mean()) for part in (draws, fresh)]
    shares = {
        "w1_ratio": found["w1"] / floor["w1"][0],
        "c2st_excess": found["c2st"] - floor["c2st"][0],
        "beyond_excess": beyond[0] - beyond[1],
    }
    chance = {
        "w1_ratio": max(LIMITS["w1_ratio"], 1 + 2 * floor["w1"][1] / floor["w1"][0]),
        "c2st_excess": LIMITS["c2st_excess"] + 2 * floor["c2st"][1],
        "beyond_excess": LIMITS["beyond_excess"] + 2 * math.sqrt(beyond[1] / len(draws)),
    }
    return shares | {"passes": all(shares[name] <= limit for name, limit in chance.items())}


def stages(config: Config) -> list[list[Cell]]:
    """Return fits and, after them, verdicts, law by law; one column has nothing to be shuffled against."""
    found: list[list[Cell]] = []
    for seed, law in sorted(product(config.seeds, LAWS), key=lambda both: both[1] in DEVELOPED_ON):
        each: dict[str, Any] = {"seed": [seed], "law": [law]}
        found.append(grid(Fitted, **each, steps=STEPS))
        found.append([cell for cell in grid(Judged, **each, defect=DEFECTS) if cell.axes != _nothing(cell)])
    return found


def _nothing(cell: Cell) -> Record:
    """Return the axes of a cell that would judge the shuffled column of a single one."""
    return cell.axes | {"law": "line", "defect": "shuffled"}


def right(record: Record) -> bool:
    """Return whether a verdict is right: "good" keeps all limits, "do not use" breaks one; others may do either."""
    return record["verdict"] not in ("good", "do not use") or bool((record["verdict"] == "good") == record["passes"])


def judged(records: Records, *, held_out: bool) -> list[Record]:
    """Return the verdicts on the distributions on which limits were chosen, or on the others."""
    return [one for one in records.kinds["judged"] if (one["law"] in DEVELOPED_ON) != held_out]


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
        "on distributions that no limit was chosen on, at least 95 % of the verdicts good and do not use are right",
        lambda records: share_right(decided(judged(records, held_out=True))) >= 0.95,
    )
}
STUDY = Study(
    "verdicts",
    "whether the verdict on a fit is right, on good fits and on deliberately poor ones",
    PRESETS,
    stages,
    (Fitted, Judged),
    picture,
    globals(),
    CLAIMS,
    page="verdicts.md",
    partial=True,
)

"""W1 against tau: annealed ULA and MALA, with a predictor and without."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from safetensors.torch import save_file

from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import markdown, mean, number
from studies.mnist import judging, sampling
from studies.mnist.images import mnist_test
from studies.mnist.sampling import METHODS, Plan

TAUS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)
HEADLINE = (0.7, 0.9, 1.1)
UNADJUSTED = ("ula", "batch_ula")
COMPARED = ("ula", "simpson")  # at every tau
HEADLINED = (*UNADJUSTED, "simpson")
WITHIN = 1.1  # of one's own best
KEYS = {"w1": "pixel W1", "frechet": "Frechet"}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)
    n: int = 500  # images
    levels: int = 100
    final: int = 50  # steps at the last level, of MALA; twice as many of ULA
    taus: tuple[float, ...] = TAUS
    batch_taus: tuple[float, ...] = (*HEADLINE, 1.3)  # of ULA with one step for all chains
    predictor_taus: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 1.1)
    score_steps: int = 0  # of a score of its own; 0 for the one that is kept
    floor_repeats: int = 5


PRESETS = {
    "quick": Config(
        (11,), n=48, levels=40, final=20, taus=(0.3, 0.7, 1.1), batch_taus=(1.1,), predictor_taus=(), score_steps=2000
    ),
    "paper": Config(),
}


class Drawn(Cell, kind="drawn"):
    """Images by a method at a tau."""

    predictor: bool
    tau: float
    method: str
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with its images."""
        return f"{self.method}-{self.tau}-{self.predictor}-{self.seed}.safetensors"

    def measure(self, config: Config, folder: Path) -> Record:
        plan = Plan(self.method, self.tau, config.levels, 0 if self.predictor else config.final, self.predictor)
        found, record = sampling.drawn_and_judged(plan, config.n, self.seed, folder)
        save_file({"images": found.images.contiguous()}, folder / self.file)
        return record


class Floor(Cell, kind="floor"):
    """Real images in the place of drawn ones."""

    n: int

    def measure(self, config: Config, folder: Path) -> Record:
        return judging.floor(mnist_test(), self.n, config.floor_repeats)


def stages(config: Config) -> list[list[Cell]]:
    """Return the floor, then pure annealing at the tau of the headline, with a predictor, and at every other tau."""
    first, others = config.seeds[:1], config.seeds[1:]
    again = [tau for tau in config.taus if tau in HEADLINE]
    rest = [tau for tau in config.taus if tau not in HEADLINE]
    cells = [
        *grid(Drawn, predictor=[False], tau=config.batch_taus, method=["batch_ula"], seed=first),
        *grid(Drawn, predictor=[False], tau=headline_first(config.taus), method=COMPARED, seed=first),
        *grid(Drawn, predictor=[False], tau=again, method=HEADLINED, seed=others),
        *grid(Drawn, predictor=[True], tau=config.predictor_taus, method=COMPARED, seed=first),
        *grid(Drawn, predictor=[False], tau=sorted(rest, reverse=True), method=COMPARED, seed=others),
    ]
    return [grid(Floor, n=(config.n,)), cells]


def headline_first(taus: Sequence[float]) -> list[float]:
    """Return the same values, those of the headline first: a run that is stopped has them."""
    return sorted(taus, key=lambda tau: (tau not in HEADLINE, tau))


def prepare(config: Config, folder: Path) -> None:
    """Train a score where the preset has one of its own."""
    sampling.prepare(config.score_steps, folder)


def means(records: Records, method: str, key: str, *, predictor: bool = False) -> dict[float, float]:
    """Return a number by tau, in the mean over seeds; infinity where chains diverged."""
    found = records.where("drawn", method=method, predictor=predictor)
    return {
        tau: mean(records.values("drawn", key, method=method, predictor=predictor, tau=tau))
        for tau in sorted({record["tau"] for record in found})
    }


def good_range(values: dict[float, float]) -> tuple[float, float]:
    """Return the smallest and largest tau around the best within 10 % of it, with none between that is not."""
    taus = list(values)
    best = min(taus, key=lambda tau: values[tau])
    low = high = taus.index(best)
    while low > 0 and values[taus[low - 1]] <= WITHIN * values[best]:
        low -= 1
    while high < len(taus) - 1 and values[taus[high + 1]] <= WITHIN * values[best]:
        high += 1
    return taus[low], taus[high]


def width(values: dict[float, float]) -> float:
    """Return the ratio of the largest to the smallest tau of the good range."""
    low, high = good_range(values)
    return high / low


def better_at_headline(records: Records) -> dict[str, bool]:
    """Return, for every tau of the headline and both forms of ULA, whether MALA is nearer by both distances."""
    mala = {key: means(records, "simpson", key) for key in KEYS}
    found = {}
    for method in UNADJUSTED:
        ula = {key: means(records, method, key) for key in KEYS}
        for tau in HEADLINE:
            if all(tau in both[key] for both in (ula, mala) for key in KEYS):
                found[f"tau {tau}, {METHODS[method].label}"] = all(mala[key][tau] < ula[key][tau] for key in KEYS)
    return found


def wider(records: Records) -> dict[str, bool]:
    """Return by which distance the good range of MALA is wider than that of ULA, as a ratio."""
    return {
        name: width(means(records, "simpson", key)) > width(means(records, "ula", key)) for key, name in KEYS.items()
    }


def better_at_best(records: Records) -> dict[str, bool]:
    """Return by which distance the best MALA is nearer than the best ULA."""
    return {
        name: min(means(records, "simpson", key).values()) < min(means(records, "ula", key).values())
        for key, name in KEYS.items()
    }


def nearer_at(records: Records) -> list[float]:
    """Return the tau of the headline at which MALA is nearer than both forms of ULA by both distances."""
    found = better_at_headline(records)
    return [tau for tau in HEADLINE if all(found.get(f"tau {tau}, {METHODS[one].label}", True) for one in UNADJUSTED)]


def short_table(records: Records) -> str:
    """Return both distances by tau, in the mean over seeds."""
    frame = {
        f"{METHODS[method].label}: {name}": {f"{tau:g}": number(v) for tau, v in means(records, method, key).items()}
        for method in HEADLINED
        for key, name in KEYS.items()
    }
    columns = [f"{tau:g}" for tau in sorted(records.settings["taus"])]
    return markdown(pd.DataFrame(frame).T.reindex(columns=columns).fillna(""), "tau")


def floor_of(records: Records, key: str, n: int) -> float:
    """Return a distance between real images."""
    return records.values("floor", key, n=n)[0]


def planned(records: Records) -> int:
    """Return how many cells the preset has."""
    return sum(map(len, stages(PRESETS[records.settings["preset"]])))


def computed(records: Records) -> int:
    """Return how many of them there are."""
    return len(records.kinds["drawn"]) + len(records.kinds["floor"])


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw both distances and the acceptance over tau."""
    panels: dict[str, dict[str, plots.Curve]] = {}
    levels: dict[str, dict[str, float]] = {}
    n = records.settings["n"]
    for key, name in KEYS.items():
        lines = {METHODS[method].label: means(records, method, key) for method in HEADLINED}
        panels[name] = {label: (list(values), list(values.values())) for label, values in lines.items()}
        levels[name] = {"real images": floor_of(records, key, n)}
    plots.curve_panels(
        panels,
        docs / "mnist-tau.png",
        labels=("tau", "distance to test images"),
        levels=levels,
        log="y",
        shared=False,
        title="MNIST by pure annealing: an accept step, and none",
    )


STUDY = Study(
    "mnist-tau",
    "MNIST: W1 against tau for annealed ULA and MALA",
    PRESETS,
    stages,
    (Floor, Drawn),
    picture,
    globals(),
    {
        "headline": Claim("at tau .7 to 1.1 annealed MALA is nearer to the data than annealed ULA", better_at_headline),
        "wider": Claim("MALA's range of tau within 10 % of its best is wider than ULA's", wider),
        "best": Claim("the best images of MALA are nearer to the data than the best of ULA", better_at_best),
    },
    prepare,
    page="images.md",
    partial=True,
    goes_on_from_kept=True,
)

"""The paper's figures of images: grids at four tau, W1 against tau, and the map over noise levels and tau."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from matplotlib.colors import ListedColormap
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import metrics
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import markdown, mean, number
from studies.mnist import sampling
from studies.mnist.sampling import LAG_IMAGES, METHODS, Plan, kept_score, reference
from studies.mnist.source import images

# The grids of images.

LEAST_LITERAL = 0.458  # sigmoid of the least value of a GELU
ACCEPTANCE_STEPS = 4000  # of a learned acceptance's training
MAX_INK = 1.5  # times that of real images, beyond which images are spoiled


@dataclass(frozen=True)
class Samples:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    n: int = 9  # images
    levels: int = 100
    final: int = 500  # steps at the last level with Simpson's rule, 1,000 of the others
    taus: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)  # the paper's


class Sample(Cell, kind="drawn"):
    """Images by a method at a tau, which are kept in a file."""

    method: str
    tau: float
    seed: int

    def file(self, folder: Path) -> Path:
        """Return the file of the images."""
        return folder / f"{self.method}-{self.tau}-{self.seed}.safetensors"

    def measure(self, config: Samples, folder: Path) -> Record:
        plan, real = Plan(self.method, self.tau, config.levels, config.final), reference(LAG_IMAGES, 0)
        drawn, record = sampling.draw(kept_score(), plan, config.n, self.seed, real)
        save_file({"images": drawn}, self.file(folder))
        return record | {"ink": ink(drawn) / ink(images("test"))}


def ink(pictures: Tensor) -> float:
    """Return the share of bright pixels."""
    return float((pictures > 0).float().mean())


def sample_stages(config: Samples) -> list[list[Cell]]:
    """Return all cells."""
    return [grid(Sample, method=METHODS, tau=config.taus, seed=config.seeds)]


def sample_table(records: Records) -> str:
    """Return ink and rho by method and tau."""
    rows: dict[str, dict[str, str]] = {}
    for record in records.kinds["drawn"]:
        found = f"{record['ink']:.2f} ({record['lag']:.2f})"
        rows.setdefault(METHODS[record["method"]].label, {})[f"tau {record['tau']:g}"] = found
    return markdown(pd.DataFrame(rows).T, "ink (rho)")


def spoiled(records: Records, method: str) -> dict[str, bool]:
    """Return at which tau images are blots, or have diverged."""
    return {f"tau {r['tau']:g}": r["ink"] > MAX_INK for r in records.where("drawn", method=method)}


def whole(records: Records) -> dict[str, bool]:
    """Return at which tau MALA's images are whole."""
    return {tau: not broken for tau, broken in spoiled(records, "simpson").items()}


def sample_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw all images: a row for every method, a column for every tau."""
    cells = [Sample.of(record) for record in records.kinds["drawn"]]
    panels = {f"{METHODS[c.method].label}\ntau {c.tau:g}": load_file(c.file(folder))["images"] for c in cells}
    plots.image_panels(panels, docs / "mnist-samples.png", columns=len(records.settings["taus"]), images_per_row=3)


# W1 against tau, and the map over noise levels and tau.


class Floor(Cell, kind="floor"):
    """The mean W1 between disjoint random subsets of real images."""

    n: int

    def measure(self, config: object, folder: object, repeats: int = 5) -> Record:
        pairs = [reference(2 * self.n, 1000 + seed).flatten(1).split(self.n) for seed in range(repeats)]
        return {"w1": statistics.mean(metrics.w1(*pair) for pair in pairs)}


class Drawn(Cell, kind="drawn"):
    """Images by a method, with a number of levels and a tau."""

    levels: int
    tau: float
    method: str
    seed: int

    def measure(self, config: "Curve | Map", folder: Path) -> Record:
        plan = Plan(self.method, self.tau, self.levels, config.final)
        drawn, record = sampling.draw(kept_score(), plan, config.n, self.seed, reference(LAG_IMAGES, 0))
        w1 = metrics.w1(drawn.flatten(1), reference(config.n, self.seed).flatten(1)) if drawn.isfinite().all() else None
        return {"w1": w1, "calls": record["calls"]}


HEADLINE = (0.7, 0.9, 1.1)
COMPARED = ("ula", "batch_ula", "simpson")
WITHIN = 1.1  # of one's own best


@dataclass(frozen=True)
class Curve:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    n: int = 500  # images
    levels: int = 100
    final: int = 50  # steps at the last level, of MALA; twice as many of ULA
    taus: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)


def curve_stages(config: Curve) -> list[list[Cell]]:
    """Return the floor, then all cells."""
    drawn = grid(Drawn, levels=[config.levels], tau=config.taus, method=COMPARED, seed=config.seeds)
    return [grid(Floor, n=(config.n,)), drawn]


def means(records: Records, method: str) -> dict[float, float]:
    """Return W1 by tau, in the mean over seeds; infinity where chains diverged."""
    return {tau: mean(records.values("drawn", "w1", method=method, tau=tau)) for tau in records.settings["taus"]}


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


def nearer(records: Records) -> dict[str, bool]:
    """Return, for every tau of the headline, whether MALA is nearer than both forms of ULA."""
    ula, batch, mala = (means(records, method) for method in COMPARED)
    return {f"{tau:g}": mala[tau] < min(ula[tau], batch[tau]) for tau in HEADLINE}


def wider(records: Records) -> bool:
    """Return whether the good range of MALA is wider than that of ULA, as a ratio."""
    mala, ula = (good_range(means(records, method)) for method in ("simpson", "ula"))
    return mala[1] / mala[0] > ula[1] / ula[0]


def better_at_best(records: Records) -> bool:
    """Return whether the best MALA is nearer than the best ULA."""
    return min(means(records, "simpson").values()) < min(means(records, "ula").values())


def curve_table(records: Records) -> str:
    """Return W1 by tau, in the mean over seeds."""
    frame = {METHODS[m].label: {f"{tau:g}": number(v) for tau, v in means(records, m).items()} for m in COMPARED}
    return markdown(pd.DataFrame(frame).T, "tau")


def curve_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw W1 over tau."""
    lines = {METHODS[method].label: means(records, method) for method in COMPARED}
    panels = {"": {label: (list(values), list(values.values())) for label, values in lines.items()}}
    levels = {"": {"real images": records.kinds["floor"][0]["w1"]}}
    labels = ("tau", "pixel W1 to test images")
    plots.curve_panels(panels, docs / "mnist-tau.png", labels=labels, levels=levels, log="y")


PAPER_THRESHOLDS = (30.0, 32.0, 34.0)
FLOOR_THRESHOLDS = (1.1, 1.25, 1.5)  # times the floor
MAPPED = ("batch_ula", "simpson")
REGIONS = {"both above": "#e3e7ec", "MALA below": "#00a05a", "ULA below": "#e07a1f", "both below": "#5a636e"}


@dataclass(frozen=True)
class Map:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1,)
    n: int = 100  # images
    levels: tuple[int, ...] = (10, 20, 50, 100)
    final: int = 50  # steps at the last level, of MALA; twice as many of ULA
    taus: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3)


def map_stages(config: Map) -> list[list[Cell]]:
    """Return the floor, then all cells."""
    drawn = grid(Drawn, levels=config.levels, tau=config.taus, method=MAPPED, seed=config.seeds)
    return [grid(Floor, n=(config.n,)), drawn]


def regions(records: Records, threshold: float) -> Tensor:
    """Return the number of the region by tau and number of levels."""
    taus, levels = records.settings["taus"], records.settings["levels"]
    found = []
    for method in MAPPED:
        w1 = [[mean(records.values("drawn", "w1", method=method, levels=n, tau=tau)) for n in levels] for tau in taus]
        found.append(torch.tensor(w1) < threshold)
    ula, mala = found
    return mala + 2 * ula


def region_shares(records: Records, threshold: float) -> list[float]:
    """Return the share of places in every region."""
    found = regions(records, threshold)
    return [float((found == region).float().mean()) for region in range(len(REGIONS))]


def thresholds(records: Records) -> dict[str, float]:
    """Return all thresholds by name."""
    own = {f"W1 below {share:g} x floor": share * records.kinds["floor"][0]["w1"] for share in FLOOR_THRESHOLDS}
    return {f"W1 below {value:g}": value for value in PAPER_THRESHOLDS} | own


def more_orange(records: Records) -> dict[str, bool]:
    """Return by which threshold MALA alone is below it in more places than ULA alone."""
    found = {name: region_shares(records, threshold) for name, threshold in thresholds(records).items()}
    return {name: each[1] > each[2] for name, each in found.items()}


def map_picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the map with every threshold: a column for every number of levels, a row for every tau."""
    maps = {name: regions(records, threshold) for name, threshold in thresholds(records).items()}
    levels, taus = records.settings["levels"], records.settings["taus"]
    plots.map_panels(
        maps,
        docs / "mnist-map.png",
        extents=dict.fromkeys(maps, (0, len(levels), 0, len(taus))),
        scale=(-0.5, 3.5),
        label="",
        columns=3,
        title="MNIST: where W1 is below a threshold, by noise levels and tau",
        cells=(levels, taus),
        classes=list(REGIONS),
        cmap=ListedColormap(list(REGIONS.values())),
        aspect="auto",
    )


SAMPLES = Study(
    "mnist-samples",
    "MNIST: images by annealed MALA and ULA at the paper's four tau",
    Samples(),
    sample_stages,
    sample_picture,
    globals(),
    {"robust": Claim("annealed MALA gives images at every tau", whole)},
    page="images.md",
)
TAU = Study(
    "mnist-tau",
    "MNIST: W1 against tau for annealed ULA and MALA",
    Curve(),
    curve_stages,
    curve_picture,
    globals(),
    {
        "headline": Claim("at tau .7 to 1.1 annealed MALA is nearer to the data than annealed ULA", nearer),
        "wider": Claim("MALA's range of tau within 10 % of its best is wider than ULA's", wider),
        "best": Claim("the best images of MALA are nearer to the data than the best of ULA", better_at_best),
    },
    page="images.md",
)
MAP = Study(
    "mnist-map",
    "MNIST: where W1 is below a threshold, over denoising steps and tau",
    Map(),
    map_stages,
    map_picture,
    globals(),
    {"robust": Claim("MALA alone is below the threshold in more places than ULA alone", more_orange)},
    page="images.md",
)

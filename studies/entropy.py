"""What the weight of the entropy, lambda, does to acceptances of Moons that are trained as the paper does.

Two figures of the paper: maps of a(x', x = (0, 0)) for three lambda, and its mean over a grid against lambda.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from scoremh import AcceptanceFit, Learned, RandomWalk, ScoreFit, datasets, fit_acceptance
from scoremh.score_matching import LONG_RECIPE
from studies import plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.tables import mean, spread
from studies.learning import REFERENCE, error, learned_score, metropolis, seeded
from studies.presets import TABLE_3

ANTISYMMETRIC = "antisymmetric"
FORMS: dict[str, float | None] = {"free, clip 1": 1.0, "free, clip 10": 10.0, "free": None}  # where gradients are cut
EXTENT, GRID_SHAPE = (-1.5, 2.25, -1.0, 1.5), (76, 51)  # the paper's ranges of x', for x = (0, 0)
GRID = torch.cartesian_prod(torch.linspace(-1.5, 2.25, GRID_SHAPE[0]), torch.linspace(-1.0, 1.5, GRID_SHAPE[1]))
MAPPED = (0.0, 0.1, 1.0)  # the paper's lambdas of its maps
BEND = 4.0  # lambda where the paper's curve levels off
MAX_NEAR_0 = 0.05  # what counts as an acceptance "close to 0"
MIN_ENHANCEMENT = 2.0  # and as one that is "significantly enhanced": so many times as much
MIN_RISE = 0.05  # what counts as a rise up to the bend
MAX_PLATEAU = 0.5  # and what as a plateau beyond: no change larger than this share of the rise
HEADS = {"mean over the grid": "mean", "error of the ratio": "error"}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    # random seeds of the acceptances' trainings; the first is also the seed of samples, score and test samples
    seeds: tuple[int, ...] = (1, 2, 3)
    lambdas: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 7.0, 10.0)  # weights of the entropy, for the free form
    steps: int = TABLE_3["moons"].steps  # training steps of an acceptance
    samples: int = 10_000  # samples to learn from
    fresh: int = 10_000  # test samples
    std: float = 0.3  # standard deviation of the random walk


def score_and_samples(config: Config, folder: Path) -> tuple[ScoreFit, Tensor]:
    """Return the score of Moons and its samples."""
    return learned_score("moons", folder, samples=config.samples, recipe=LONG_RECIPE, seed=config.seeds[0])


def fresh_samples(config: Config) -> Tensor:
    """Return the samples on which acceptances are tested."""
    return datasets.moons(config.fresh, generator=seeded(2, config.seeds[0]))


class Reference(Cell, kind="reference"):
    """The mean error of the best rule with the same probability for every candidate."""

    dataset: str

    def measure(self, config: Config, folder: Path) -> Record:
        score, _ = score_and_samples(config, folder)
        accept = metropolis(REFERENCE, score, RandomWalk(config.std), fresh_samples(config), config.seeds[0])
        return {"coin_error": float((accept - accept.median()).abs().mean())}


class Training(Cell, kind="entropy"):
    """An acceptance with a weight of the entropy, in a form."""

    lambda_: float
    form: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        score, x = score_and_samples(config, folder)
        fit, walk = self.fit(score, x, config), RandomWalk(config.std)
        with torch.inference_mode():
            heights = fit.net(GRID, torch.zeros_like(GRID)).exp()
        off = error(Learned(fit, "metropolis"), score, walk, fresh_samples(config), config.seeds[0])
        is_drawn = self.lambda_ in MAPPED and self.seed == config.seeds[0]
        drawn = {"map": [round(value, 5) for value in heights.tolist()]} if is_drawn else {}
        return {"mean": float(heights.mean()), "error": off} | drawn

    def fit(self, score: ScoreFit, x: Tensor, config: Config) -> AcceptanceFit:
        """Train with the paper's network and settings for Moons, except lambda, the clipping and the form."""
        row = TABLE_3["moons"]._replace(entropy=self.lambda_, steps=config.steps)
        return fit_acceptance(
            score,
            RandomWalk(config.std),
            x,
            form="antisymmetric" if self.form == ANTISYMMETRIC else "free",
            matching=replace(row.matching, clip=FORMS.get(self.form)),
            net=row.network((2,), seeded(3, self.seed)),
            standardize=False,
            recipe=row.recipe,
            generator=seeded(3, self.seed),
        )


def stages(config: Config) -> list[list[Cell]]:
    """Return the reference, which learns the score, then all trainings."""
    free = grid(Training, lambda_=config.lambdas, form=FORMS, seed=config.seeds)
    return [[Reference("moons")], free + [Training(0.0, ANTISYMMETRIC, seed) for seed in config.seeds]]


def means(records: Records, form: str, key: str = "mean") -> dict[float, float]:
    """Return the means over seeds by lambda."""
    lambdas = (0.0,) if form == ANTISYMMETRIC else records.settings["lambdas"]
    return {weight: mean(records.values("entropy", key, form=form, lambda_=weight)) for weight in lambdas}


def enhanced(records: Records) -> dict[str, bool]:
    """Return by form whether the acceptance is near 0 without entropy, and raised by it at a lambda of the maps."""
    found = {form: means(records, form) for form in FORMS}
    raised = {form: max(one[weight] for weight in MAPPED) >= MIN_ENHANCEMENT * one[0.0] for form, one in found.items()}
    return {form: found[form][0.0] < MAX_NEAR_0 and raised[form] for form in FORMS}


def rises_and_plateaus(records: Records) -> dict[str, bool]:
    """Return by form whether the acceptance rises to the bend, beyond the spread over seeds, and plateaus there."""
    found = {}
    for form in FORMS:
        by_lambda = means(records, form)
        noise = max(spread(records.values("entropy", "mean", form=form, lambda_=weight)) for weight in by_lambda)
        rise = by_lambda[BEND] - by_lambda[0.0]
        beyond = max(abs(value - by_lambda[BEND]) for weight, value in by_lambda.items() if weight >= BEND)
        found[form] = rise > max(MIN_RISE, 2 * noise) and beyond <= MAX_PLATEAU * rise
    return found


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw the maps of the first seed, and the means and the error of the ratio against lambda."""
    wanted = [(form, weight) for form in ("free, clip 10", "free") for weight in MAPPED] + [(ANTISYMMETRIC, 0.0)]
    maps = {
        f"{form}, lambda = {weight:g}": torch.tensor(record["map"]).reshape(GRID_SHAPE).T
        for form, weight in wanted
        for record in records.where("entropy", form=form, lambda_=weight, seed=records.settings["seeds"][0])
    }
    plots.map_panels(
        maps,
        docs / "entropy-maps.png",
        extents=dict.fromkeys(maps, EXTENT),
        scale=(0.0, 1.0),
        label="a(x', x), with x = (0, 0)",
        columns=4,
        title="What entropy does to the acceptance of a random walk on Moons",
    )
    panels: dict[str, dict[str, plots.Curve]] = {}
    levels: dict[str, dict[str, float]] = {}
    for head, key in HEADS.items():
        panels[head] = {form: line(records, form, key) for form in FORMS}
        levels[head] = {"antisymmetric, without entropy": means(records, ANTISYMMETRIC, key)[0.0]}
    levels["error of the ratio"]["one probability for all"] = records.kinds["reference"][0]["coin_error"]
    path, title = docs / "entropy-curve.png", "Acceptance against the weight of the entropy, Moons"
    plots.curve_panels(panels, path, labels=("lambda", "acceptance, or its error"), levels=levels, title=title)


def line(records: Records, form: str, key: str) -> plots.Curve:
    """Return a number over lambda with its spread over seeds."""
    by_lambda = means(records, form, key)
    bars = [spread(records.values("entropy", key, form=form, lambda_=weight)) for weight in by_lambda]
    return list(by_lambda), list(by_lambda.values()), bars


STUDY = Study(
    "entropy",
    "the paper's Figure 2 and its curve over lambda: what entropy does to the learned acceptance, on Moons",
    Config(),
    stages,
    picture,
    globals(),
    {
        "enhanced": Claim("without entropy the acceptance is close to 0; with it, significantly enhanced", enhanced),
        "rises": Claim("the mean acceptance rises sharply up to lambda = 4 and plateaus beyond", rises_and_plateaus),
    },
)

"""How accurate is log p from a score? Compared with known densities and with other estimates."""

from pathlib import Path

import torch
from torch import Tensor

from scoremh import diffusion
from studies import plots
from studies.densities import chains
from studies.densities.cells import ESTIMATES, KINDS, stages
from studies.densities.distributions import DISTRIBUTIONS
from studies.densities.fits import Config, Fit, blur
from studies.framework import Claim, Records, Study
from studies.framework.tables import mean

PRESETS = {"paper": Config()}
MAX_BETWEEN = dict(zip(DISTRIBUTIONS, (0.15, 0.2, 0.35, 0.7, 0.9, 0.7), strict=True))  # nats
MAX_EXCESS = 0.1  # of the integral of exp(log p) over 1
DEPTH = 12.0  # nats below the maximum that a picture shows
SIDE = 200  # pixels of a side of a panel


def accurate(records: Records) -> dict[str, bool]:
    """Return on which distributions the error between modes, by the default path, is within its bound."""
    return {
        DISTRIBUTIONS[name][0]: mean(records.values("error", "between", distribution=name, path="radial")) <= bound
        for name, bound in MAX_BETWEEN.items()
    }


def normalised(records: Records) -> dict[str, bool]:
    """Return on which distributions the integral of exp(log p) is within 10 % of 1, in the mean over seeds."""
    totals = {name: mean(records.values("total", "total", distribution=name)) for name in DISTRIBUTIONS}
    return {DISTRIBUTIONS[name][0]: abs(total - 1) <= MAX_EXCESS for name, total in totals.items()}


def below_truth(records: Records, distribution: str, method: str) -> float:
    """Return by how many nats a row a method's held-out likelihood is below the truth's, over the method's seeds."""
    truth = {one["seed"]: one["value"] for one in records.where("held_out", distribution=distribution, method="truth")}
    there = records.where("held_out", distribution=distribution, method=method)
    return mean([truth[one["seed"]] - one["value"] for one in there])


def likelihoods(records: Records, distribution: str) -> list[str]:
    """Return the entries of a row of the table: how far every estimate is below the truth, the nearest in bold."""
    found = [below_truth(records, distribution, method) for method in ESTIMATES]
    return [f"**{value:.3f}**" if value == min(found) else f"{value:.3f}" for value in found]


def panel(name: str, folder: Path, seed: int) -> tuple[dict[str, Tensor], tuple[float, float, float, float]]:
    """Return log p below its maximum by the fit and in truth, on a square of the plane, and the square."""
    title, known = DISTRIBUTIONS[name]
    fit, short = Fit(name, seed).load(folder), title.split(":")[0]
    low, high = fit.support.low.tolist(), fit.support.high.tolist()
    rows, columns = (torch.linspace(low[axis], high[axis], SIDE) for axis in (1, 0))
    points = torch.cartesian_prod(columns, rows)
    with torch.inference_mode():
        estimate = diffusion.log_density(fit, points).double()
    true = known.log_density(points, blur(fit))
    top = float(true.max())
    shown = {f"{short}: truth, blurred as the fit": true, f"{short}: through noise": estimate}
    shades = {text: (values - top).reshape(SIDE, SIDE).T for text, values in shown.items()}
    return shades, (low[0], high[0], low[1], high[1])


def picture(records: Records, folder: Path, docs: Path) -> None:
    """Draw log p on Moons and Pinwheel beside the truth; keep the picture where their fits were not made again."""
    seed = records.settings["seeds"][0]
    if not all(Fit(name, seed).path(folder).exists() for name in ("moons", "pinwheel")):
        return
    plots.density_panels(
        [panel(name, folder, seed) for name in ("moons", "pinwheel")],
        docs / "densities_planes.png",
        depth=DEPTH,
        title="log p from a learned score, beside the truth",
    )


STUDY = Study(
    "densities",
    "what log p from a score is worth, against known densities and beside other estimates",
    PRESETS,
    stages,
    KINDS,
    picture,
    vars(chains) | globals(),
    {
        "accurate": Claim("log p has the weights of modes within its bounds", accurate),
        "normalised": Claim("exp(log p) integrates to 1 within 10 %", normalised),
    },
    page="densities.md",
    partial=True,
    packages=("zuko",),
    shows_draws=True,
)

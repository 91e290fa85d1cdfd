"""The tables: open ones that ship with scikit-learn, as numbers and as mixed tables, and generated ones.

Open tables are split at random into halves: one to learn from, one to test on, and the floor of a distance is that
between the halves. Generated ones have as many fresh rows as are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Frame = Any
Law = Callable[[int, np.random.Generator], Frame]


@dataclass(frozen=True)
class Known:
    """A table with its truth.

    Args:
        title: What it is.
        rows: Number of rows to learn from; half of all for an open table.
        law: Function that draws rows; None for an open table.
        load: Function that returns all rows of an open table.
        bounds: Bounds of columns that no draw may break.
        robust: Whether distances are taken in coordinates for heavy tails (asinh of medians and median distances).
        columns: Kinds that a user would give; found from the rows where empty.
    """

    title: str
    rows: int = 0
    law: Law | None = None
    load: Callable[[], Frame] | None = None
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    robust: bool = False
    columns: dict[str, Any] = field(default_factory=dict)

    def split(self, seed: int, fresh: int) -> tuple[Frame, Frame, Frame]:
        """Return rows to learn from, rows to test on, and rows that represent a perfect sampler."""
        random = np.random.default_rng([7, seed])
        if self.law is not None:
            return self.law(self.rows, random), self.law(fresh, random), self.law(fresh, random)
        assert self.load is not None
        frame = self.load()
        order = random.permutation(len(frame))
        halves = [frame.iloc[part].reset_index(drop=True) for part in np.array_split(order, 2)]
        return halves[0], halves[1], halves[0]


def open_table(name: str, label: str = "", columns: int | None = None) -> Callable[[], Frame]:
    """Return a function that loads an open table, with its label as a category where that is named."""

    def load() -> Frame:
        from sklearn import datasets

        found = getattr(datasets, f"load_{name}")(as_frame=True)
        frame = found.data.iloc[:, :columns]
        names = getattr(found, "target_names", None)
        if label:
            values = found.target if names is None else pd.Categorical.from_codes(found.target, categories=list(names))
            frame = frame.assign(**{label: values})
        return frame

    return load


def digits(components: int, label: str = "") -> Callable[[], Frame]:
    """Return a function that loads the first principal components of scikit-learn's digits."""

    def load() -> Frame:
        from sklearn.datasets import load_digits
        from sklearn.decomposition import PCA

        x, y = load_digits(return_X_y=True)
        parts = PCA(components, random_state=0).fit_transform(x)
        frame = pd.DataFrame(parts, columns=[f"component {i}" for i in range(components)])
        return frame.assign(**{label: pd.Categorical(y.astype(str))}) if label else frame

    return load


def bounded_posterior(n: int, random: np.random.Generator) -> Frame:
    """Return a posterior with mass at its bounds: shares near 0 and 1, a scale near 0, an angle up to its ends."""
    share = random.beta(0.7, 0.9, n)
    scale = random.gamma(0.8 + share, 1.0)
    angle = np.pi * (2 * random.beta(0.8 + 2 * share, 1.0) - 1)
    return pd.DataFrame({"share": share, "scale": scale, "angle": angle, "mean": random.normal(2 * share, 0.3 + scale)})


def funnel(n: int, random: np.random.Generator) -> Frame:
    """Return Neal's funnel in four dimensions, its neck of standard deviation 1.5."""
    v = 1.5 * random.normal(size=n)
    others = np.exp(v / 2)[:, None] * random.normal(size=(n, 3))
    return pd.DataFrame(np.c_[v, others], columns=["v", "x", "y", "z"])


def turned_moons(n: int, random: np.random.Generator) -> Frame:
    """Return two moons in a plane of eight dimensions, with noise across it, turned at random."""
    from sklearn.datasets import make_moons

    plane = make_moons(n, noise=0.1, random_state=int(random.integers(2**31)))[0]
    turn = np.linalg.qr(np.random.default_rng(11).normal(size=(8, 8)))[0]
    x = np.c_[plane, 0.3 * random.normal(size=(n, 6))] @ turn
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(8)])


def counts_and_categories(n: int, random: np.random.Generator) -> Frame:
    """Return counts, an ordered scale, truth values and categories that depend on each other."""
    shop = random.choice(4, n, p=[0.5, 0.3, 0.15, 0.05])
    taste = random.normal(size=n) + 0.8 * (shop == 2)
    grade = np.clip(np.round(3 + 0.9 * taste + 0.5 * random.normal(size=n)), 1, 5).astype(int)
    return pd.DataFrame(
        {
            "shop": pd.Categorical(np.array(["north", "south", "east", "west"])[shop]),
            "visits": random.poisson(np.exp(1 + 0.4 * taste)),
            "grade": grade,
            "member": random.random(n) < 1 / (1 + np.exp(-taste - (shop == 1))),
            "spent": np.where(random.random(n) < 0.2, 0.0, np.exp(2 + 0.5 * taste + 0.5 * random.normal(size=n))),
        }
    )


def one_column(n: int, random: np.random.Generator) -> Frame:
    """Return one column of three modes."""
    mode = random.choice(3, n, p=[0.2, 0.5, 0.3])
    values = np.array([-3.0, 0.0, 4.0])[mode] + np.array([0.3, 1.0, 0.5])[mode] * random.normal(size=n)
    return pd.DataFrame({"x": values})


def heavy_tails(n: int, random: np.random.Generator) -> Frame:
    """Return Student's t with two degrees of freedom in three dimensions, two of them correlated."""
    z = random.normal(size=(n, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 1.0]])
    t = z / np.sqrt(random.chisquare(2, n) / 2)[:, None]
    return pd.DataFrame(t, columns=["a", "b", "c"])


POSTERIOR_BOUNDS = {"share": (0.0, 1.0), "scale": (0.0, np.inf), "angle": (-np.pi, np.pi)}
POSTERIOR_KINDS = {"share": (0, 1), "scale": "positive", "angle": (-np.pi, np.pi)}  # known to who has a posterior
TABLES: dict[str, Known] = {
    "posterior": Known("bounded posterior, 2,000 x 4", 2000, bounded_posterior, bounds=POSTERIOR_BOUNDS),
    "posterior_given": Known(
        "bounded posterior, its bounds given, 2,000 x 4",
        2000,
        bounded_posterior,
        bounds=POSTERIOR_BOUNDS,
        columns=POSTERIOR_KINDS,
    ),
    "counts": Known(
        "counts and categories, 2,000 x 5",
        2000,
        counts_and_categories,
        bounds={"visits": (0, np.inf), "grade": (1, 5), "spent": (0, np.inf)},
    ),
    "moons": Known("two moons turned in 8-D, 2,000 x 8", 2000, turned_moons),
    "iris_mixed": Known("iris with species, 75 x 5", load=open_table("iris", "species")),
    "digits_mixed": Known("digits, 5 components and digit, 899 x 6", load=digits(5, "digit")),
    "heavy": Known("Student's t, 2 degrees of freedom, 2,000 x 3", 2000, heavy_tails, robust=True),
    "wine": Known("wine, 89 x 13", load=open_table("wine")),
    "one": Known("one column of three modes, 2,000 x 1", 2000, one_column),
    "funnel": Known("funnel, 2,000 x 4", 2000, funnel),
    "diabetes": Known("diabetes, 221 x 10", load=open_table("diabetes")),
    "cancer_mixed": Known(
        "breast cancer, ten means and diagnosis, 285 x 11", load=open_table("breast_cancer", "diagnosis", 10)
    ),
    "moons_200": Known("two moons turned in 8-D, 200 x 8", 200, turned_moons),
    "moons_50000": Known("two moons turned in 8-D, 50,000 x 8", 50_000, turned_moons),
    "digits": Known("digits, 8 components, 899 x 8", load=digits(8)),
    "iris": Known("iris, 75 x 4", load=open_table("iris")),
    "wine_mixed": Known("wine with cultivar, 89 x 14", load=open_table("wine", "cultivar")),
    "cancer": Known("breast cancer, 285 x 30", load=open_table("breast_cancer")),
    "diabetes_mixed": Known("diabetes with progression, 221 x 11", load=open_table("diabetes", "progression")),
}


def standard_units(rows: Frame, like: Frame, *, robust: bool = False) -> NDArray[np.float64]:
    """Return rows as numbers in units of the standard deviations of others: categories as indicators of unit variance.

    Args:
        rows: Rows to convert.
        like: Rows that decide the units.
        robust: Whether numbers are taken in coordinates for heavy tails.
    """
    parts = []
    for name in like:
        if like[name].dtype.kind in "iuf":
            x, y = (frame[name].to_numpy(float) for frame in (rows, like))
            if robust:
                middle = np.median(y)
                x, y = (np.arcsinh((one - middle) / np.median(np.abs(y - middle))) for one in (x, y))
            parts.append((x - y.mean()) / y.std())
        else:
            levels = sorted(like[name].unique())
            shares = np.array([(like[name] == level).mean() for level in levels])
            parts += [(rows[name] == level).to_numpy(float) / np.sqrt(1 - (shares**2).sum()) for level in levels]
    return np.stack(parts, 1)

"""The paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor.

No chain starts from data: every row starts from a normal distribution with the samples' mean and at least their
covariance, and what is judged is the last draw of independent chains, against fresh samples that nothing has seen.
"""

import importlib.util
from pathlib import Path

from scoremh._shared import checks
from studies.framework import Claim, Study
from studies.table1 import page
from studies.table1.cells import KINDS, TEST_POINTS, Config, settings, stages, summary
from studies.table1.kept import carried_over
from studies.table1.problem import DATASETS

PRESETS = {
    "quick": Config(
        seeds=(11,),  # none of the paper preset's
        draws=dict.fromkeys(DATASETS, 2000),
        training={"moons": 250, "pinwheel": 250, "s_curve": 80, "swiss_roll": 80},
        chain_steps=200,
        floors=3,
        tests=2,
    ),
    "paper": Config(
        seeds=(1, 2, 3),
        draws={"moons": 2000, "pinwheel": 5000, "s_curve": 5000, "swiss_roll": 2000},
        training={"moons": 1000, "pinwheel": 1000, "s_curve": 300, "swiss_roll": 300},
        chain_steps=300,
        floors=5,
        tests=10,
    ),
}


def prepare(config: Config, folder: Path) -> None:
    """Require zuko, which one row needs."""
    if importlib.util.find_spec("zuko") is None:
        expected = "zuko, for the row of a normalizing flow"
        raise ImportError(checks.message(expected, "no such package", "Run: pip install 'scoremh[flows]'"))


STUDY = Study(
    "table1",
    "the paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor",
    PRESETS,
    stages,
    KINDS,
    page.pictures,
    vars(page) | {"TEST_POINTS": TEST_POINTS},
    {
        "reached": Claim("the numbers of Score RW, Score MALA and Score pCN in Table 1", page.reached),
        "with_anchors": Claim("the same numbers, by acceptances learned with anchors", page.reached_with_anchors),
    },
    prepare=prepare,
    settings=settings,
    summary=summary,
    carried_over=carried_over,
    partial=True,
    packages=("zuko",),
    excerpts={"index.md": "table1-excerpt.md"},
    shows_draws=True,
)

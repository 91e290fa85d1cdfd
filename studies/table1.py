"""The paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor.

No chain starts from data: every row starts from a normal distribution with the samples' mean and at least their
covariance, and what is judged is the last draw of independent chains, against fresh samples that nothing has seen.
Chains run on the distribution blurred by noise of `NOISE_LEVEL`, at which its modes are connected, and the probability
flow carries their draws down to the samples.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scoremh import (
    AcceptanceFit,
    Always,
    LineIntegral,
    ScoreFit,
    ScoreMH,
    annealing,
    datasets,
    fit_score,
    metrics,
    sample,
)
from scoremh._shared import rng
from scoremh.acceptance import Rule
from scoremh.balance_matching import RECIPE
from scoremh.networks import FORMS, NoiseConditionalMLP
from scoremh.sampler import ProposalName, Sampler
from scoremh.types import Target
from studies import outsiders, plots
from studies.framework import Cell, Claim, Record, Records, Study, grid
from studies.framework.runner import cells_in
from studies.framework.tables import mean, number, number_and_spread
from studies.presets import TABLE_3
from studies.sinkhorn import paper_metrics

DATASETS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
TITLES = {"moons": "Moons", "pinwheel": "Pinwheel", "s_curve": "S-curve", "swiss_roll": "Swiss roll"}
EVENLY_SPACED = ("moons",)  # scikit-learn puts exactly half of n points on either moon: they are not independent
SAMPLES = 10_000  # to learn from, as in the paper
NOISE_LEVEL = 0.3
TUNING_CHAINS = 500
ROUNDING = 1e-5  # share of a box's width by which starts stay inside
ANNEALING = (5.0, 0.02, 25, 20)  # highest and lowest noise, levels, steps at each
FLOW = (5.0, 0.02)  # highest and lowest noise: the flow alone
RATE_TIMES_WIDTH = 0.5  # learning rate of a network of the paper's: with RECIPE's the widest do not learn
METRICS = ("w1", "w2", "mmd")
TEST_POINTS = 2000  # of a two-sample test
LEVEL = 0.05  # of a two-sample test
DOTS = 800  # points of a panel

PAPER: dict[str, dict[str, tuple[float, float, float]]] = {  # W1, W2, MMD as the paper prints them
    "moons": {
        "ula": (0.143, 0.096, 0.054),
        "score_rw": (0.019, 0.007, 0.004),
        "score_mala": (0.018, 0.004, 0.002),
        "score_pcn": (0.039, 0.021, 0.012),
    },
    "pinwheel": {
        "ula": (0.106, 0.062, 0.022),
        "score_rw": (0.012, 0.001, 0.001),
        "score_mala": (0.086, 0.064, 0.027),
        "score_pcn": (0.016, 0.007, 0.003),
    },
    "s_curve": {
        "ula": (0.082, 0.055, 0.016),
        "score_rw": (0.050, 0.015, 0.004),
        "score_mala": (0.046, 0.014, 0.004),
        "score_pcn": (0.090, 0.051, 0.017),
    },
    "swiss_roll": {
        "ula": (2.881, 14.409, 0.811),
        "score_rw": (2.270, 8.470, 0.400),
        "score_mala": (1.399, 4.575, 0.245),
        "score_pcn": (14.167, 113.824, 6.903),
    },
}


class Method(NamedTuple):
    """A row: chains of one kernel, whose rule is given or learned; no proposal where no such chains are run.

    With anchors, log p through noise at the level of the chains joins the training. A row at the fit's own level is
    what the paper does: no flow, and a walk with the samples' spread for its standard deviation.
    """

    label: str
    proposal: ProposalName | None = None
    rule: Rule | None = None
    learned: bool = False
    anchored: bool = False
    own_level: bool = False


METHODS = {
    "ula": Method("ULA", "mala", Always()),
    "score_rw": Method("Score RW", "rw", learned=True),
    "score_mala": Method("Score MALA", "mala", learned=True),
    "score_pcn": Method("Score pCN", "pcn", learned=True),
    "rw_anchored": Method("Score RW, anchored", "rw", learned=True, anchored=True),
    "mala_anchored": Method("Score MALA, anchored", "mala", learned=True, anchored=True),
    "pcn_anchored": Method("Score pCN, anchored", "pcn", learned=True, anchored=True),
    "rw_low": Method("Score RW, own level", "rw", learned=True, own_level=True),
    "simpson": Method("MALA, Simpson", "mala", LineIntegral("simpson")),
    "annealed": Method("Annealed MALA, Simpson"),
    "flow": Method("Probability flow"),
    "scoremh": Method("ScoreMH, defaults"),
    "spline_flow": Method("Neural spline flow"),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")
ANCHORED = {"rw_anchored": "score_rw", "mala_anchored": "score_mala", "pcn_anchored": "score_pcn"}  # to the paper's
LEARNED = [name for name, row in METHODS.items() if row.learned]
PICTURED = (*PAPER_METHODS, "annealed")


@dataclass(frozen=True)
class Config:
    """All that decides the numbers."""

    seeds: tuple[int, ...] = (1, 2, 3)  # random seeds of samples, trainings and chains
    draws: Mapping[str, int] = field(  # by dataset, number of chains of a row and of points to compare them with
        default_factory=lambda: {"moons": 2000, "pinwheel": 5000, "s_curve": 5000, "swiss_roll": 2000}
    )
    training: Mapping[str, int] = field(  # by dataset, number of training steps of an acceptance
        default_factory=lambda: {"moons": 1000, "pinwheel": 1000, "s_curve": 300, "swiss_roll": 300}
    )
    chain_steps: int = 300  # steps of a chain
    floors: int = 5  # fresh samples whose distances give the floor, for every seed
    tests: int = 10  # two-sample tests, each on other chains, in turn from the scores of all seeds
    tested: tuple[str, ...] = ("simpson", "flow")  # rows that are tested


def seeded(use: int, seed: int) -> torch.Generator:
    """Return a generator: 0 samples, 1 score, 2 test samples, 3 acceptances, 4 chains, 5 starts, 6 floor, 7 tests."""
    return torch.Generator().manual_seed(1000 * seed + use)


@dataclass(frozen=True)
class Problem:
    """A dataset with a random seed, and the folder of its files."""

    name: str
    seed: int
    folder: Path

    @cached_property
    def x(self) -> Tensor:
        """The samples to learn from."""
        return DATASETS[self.name](SAMPLES, generator=seeded(0, self.seed))

    def fresh(self, n: int) -> Tensor:
        """Return the samples to compare draws with, which are used for nothing else."""
        return DATASETS[self.name](n, generator=seeded(2, self.seed))

    def path(self, *names: str) -> Path:
        """Return the file of something that is learned, or of draws."""
        return self.folder / (" ".join([self.name, str(self.seed), *names]) + ".safetensors")

    @cached_property
    def score(self) -> ScoreFit:
        """The learned score."""
        return ScoreFit.load(self.path("score"))

    def fit_score(self) -> Record:
        """Learn the score with residual layers: the surfaces are bent in two directions and flat in the third."""
        generator = seeded(1, self.seed)
        net = NoiseConditionalMLP(tuple(self.x.shape[1:]), residual=True, generator=rng.child(generator))
        fit = fit_score(self.x, net=net, generator=generator)
        fit.save(self.path("score"))
        return {"seconds": fit.seconds, "level": fit.noise_level}

    def sampler(
        self,
        proposal: ProposalName = "mala",
        step: float | None = None,
        acceptance: Rule | AcceptanceFit | None = None,
        *,
        own_level: bool = False,
    ) -> Sampler:
        """Return a sampler at `NOISE_LEVEL`, or in the box of the samples at the fit's own noise level."""
        level = self.score.noise_level if own_level else NOISE_LEVEL
        assert level is not None
        kind = BoundedSampler if own_level else Sampler
        return kind(self.score, level, proposal, acceptance or LineIntegral("simpson"), step, group_size=None)


class BoundedSampler(Sampler):
    """A sampler whose chains stay in the box of the samples."""

    score: ScoreFit

    @property
    def target(self) -> Target:
        """The samples blurred by the noise level, in their box."""
        to_data, box, blurred = self.score.coordinates, self.score.support, super().target
        assert isinstance(blurred, Target)
        return blurred._replace(support=lambda u: box(to_data(u)))


def broad_start(sampler: Sampler, n: int, seed: int) -> Tensor:
    """Return starts from broad noise; those outside the box of a bounded sampler are moved to its sides."""
    u = sampler.start(n, noise_level=sampler.noise_level, generator=seeded(5, seed))
    if not isinstance(sampler, BoundedSampler):
        return u
    to_data, (low, high) = sampler.score.coordinates, (sampler.score.support.low, sampler.score.support.high)
    margin = ROUNDING * (high - low)
    return to_data.inverse(to_data(u).clamp(low + margin, high - margin))


def tuned(sampler: Sampler, seed: int) -> Record:
    """Return the step at which a proposal is accepted at its most efficient rate by the integrated score."""
    start = broad_start(sampler, TUNING_CHAINS, seed + 100)
    return {"step": sampler.tune(start, generator=seeded(4, seed + 100)).step_size}


def run(sampler: Sampler, n: int, length: int, seed: int) -> tuple[Tensor, float]:
    """Return the last draws of n chains from broad noise, carried down to the samples, and their acceptance rate."""
    start = broad_start(sampler, n, seed)
    chains = sample(sampler.kernel, start, draws=1, thin=length, generator=seeded(4, seed))
    levels = [sampler.noise_level] if isinstance(sampler, BoundedSampler) else None
    return sampler.carry_down(chains.last, levels), chains.acceptance_rate


def drawn(problem: Problem, method: str, n: int, length: int, seed: int) -> Tensor:
    """Return n draws of a row, with chains of this length where it runs chains of one kernel."""
    row, sampler = METHODS[method], problem.sampler()
    if row.proposal is not None:
        rule = AcceptanceFit.load(problem.path(method)) if row.learned else row.rule
        sampler = problem.sampler(row.proposal, step_size(problem, row), rule, own_level=row.own_level)
        return run(sampler, n, length, seed)[0]
    if method == "annealed":
        high, low, count, each = ANNEALING
        options: Any = {"levels": annealing.karras(high, low, count), "measure_noise": False}
        return sampler.carry_down(sampler.anneal(n, each, generator=seeded(4, seed), **options).draws, [low])
    if method == "flow":
        start = sampler.start(n, noise_level=FLOW[0], generator=seeded(5, seed))
        return sampler.carry_down(start, annealing.flow_levels(*FLOW))
    if method == "scoremh":
        return ScoreMH(random_state=seed).fit(problem.x.numpy()).sample_chains(n, draws=1).last
    return outsiders.spline_flow(problem.x, n, seeded(4, seed))


def step_size(problem: Problem, row: Method) -> float:
    """Return the step of a row: tuned, or one of the samples' spread at the fit's own level."""
    if row.own_level:
        return 1.0
    assert row.proposal is not None
    cell = Step(problem.name, problem.seed, row.proposal)
    return float(cells_in(problem.folder, [Step])[cell]["step"])


def distances(x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return all metrics between two samples; None where the first is not finite."""
    if not bool(x.isfinite().all()):
        return dict.fromkeys(METRICS)
    return {**paper_metrics(x, y)}


def independent(name: str, n: int, generator: torch.Generator) -> Tensor:
    """Return n independent draws: where a dataset is evenly spaced, some of a hundred times as many."""
    if name not in EVENLY_SPACED:
        return DATASETS[name](n, generator=generator)
    many = DATASETS[name](100 * n, generator=generator)
    return many[torch.randperm(len(many), generator=generator)[:n]]


def floor(problem: Problem, n: int, number: int) -> Record:
    """Return the distances between two fresh samples."""
    generator = seeded(6, 100 * problem.seed + number)
    return {**distances(DATASETS[problem.name](n, generator=generator), problem.fresh(n))}


class Score(Cell, kind="score"):
    """The learned score of a dataset."""

    dataset: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        return Problem(self.dataset, self.seed, folder).fit_score()


class Step(Cell, kind="steps"):
    """The tuned step of a proposal."""

    dataset: str
    seed: int
    proposal: ProposalName

    def measure(self, config: Config, folder: Path) -> Record:
        return tuned(Problem(self.dataset, self.seed, folder).sampler(self.proposal), self.seed)


class Training(Cell, kind="acceptance"):
    """The learned acceptance of a row: the paper's free form and networks, trained by the library's defaults."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        problem, row = Problem(self.dataset, self.seed, folder), METHODS[self.method]
        assert row.proposal is not None
        generator, preset = seeded(3, self.seed), TABLE_3[self.dataset]
        sizes = {"hidden": preset.hidden, "blocks": preset.blocks}
        net = FORMS["free"].network(tuple(problem.x.shape[1:]), generator=rng.child(generator), **sizes)
        recipe = replace(RECIPE, steps=config.training[self.dataset], rate=RATE_TIMES_WIDTH / preset.hidden)
        sampler = problem.sampler(row.proposal, step_size(problem, row), own_level=row.own_level)
        options: Any = {"net": net, "recipe": recipe, "anchors": row.anchored, "generator": generator}
        fit = sampler.learn_acceptance(problem.x, "free", **options).acceptance
        assert isinstance(fit, AcceptanceFit)
        fit.save(problem.path(self.method))
        return {"seconds": fit.seconds}


class Row(Cell, kind="rows"):
    """The draws of a row, which are kept in a file, and their distances to fresh samples."""

    dataset: str
    seed: int
    method: str

    def measure(self, config: Config, folder: Path) -> Record:
        problem, n = Problem(self.dataset, self.seed, folder), config.draws[self.dataset]
        draws = drawn(problem, self.method, n, config.chain_steps, self.seed)
        save_file({"draws": draws.clone()}, problem.path("draws", self.method))
        return {**distances(draws, problem.fresh(n))}


class Floor(Cell, kind="floor"):
    """The mean distances between two fresh samples."""

    dataset: str
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        problem, n = Problem(self.dataset, self.seed, folder), config.draws[self.dataset]
        every = [floor(problem, n, number) for number in range(config.floors)]
        return {metric: statistics.mean(one[metric] for one in every) for metric in METRICS}


class TwoSample(Cell, kind="test"):
    """A two-sample test between a row's draws and fresh samples."""

    dataset: str
    seed: int
    method: str
    number: int

    def measure(self, config: Config, folder: Path) -> Record:
        problem, seed = Problem(self.dataset, self.seed, folder), 10_000 + self.number
        draws = drawn(problem, self.method, TEST_POINTS, config.chain_steps, seed)
        fresh = independent(self.dataset, TEST_POINTS, seeded(7, self.number))
        return {"p_value": metrics.two_sample_test(draws, fresh, generator=seeded(7, 1000 + self.number)).p_value}


def stages(config: Config) -> list[list[Cell]]:
    """Return the cells seed by seed, rows that need no training first, then the tests."""
    found: list[list[Cell]] = []
    others = [name for name in METHODS if name not in LEARNED]
    proposals = sorted({row.proposal for row in METHODS.values() if row.proposal is not None and not row.own_level})
    for seed in config.seeds:
        axes: dict[str, Any] = {"dataset": DATASETS, "seed": [seed]}
        found += [
            grid(Score, **axes),
            grid(Step, **axes, proposal=proposals),
            [*grid(Floor, **axes), *grid(Row, **axes, method=others)],
            grid(Training, **axes, method=LEARNED),
            grid(Row, **axes, method=LEARNED),
        ]
    numbered = product(DATASETS, config.tested, range(config.tests))
    return [
        *found,
        [TwoSample(name, config.seeds[i % len(config.seeds)], method, i) for name, method, i in numbered],
    ]


def floor_of(records: Records, dataset: str) -> float:
    """Return the mean floor of W1."""
    return mean(records.values("floor", "w1", dataset=dataset))


def reached(records: Records, methods: Sequence[str] = PAPER_METHODS[1:]) -> dict[str, bool]:
    """Return which numbers of the Score-MH rows are at or below the paper's; a negative one is not a distance."""
    found = {}
    for dataset, method, (place, metric) in product(DATASETS, methods, enumerate(METRICS)):
        own = mean(records.values("rows", metric, dataset=dataset, method=method))
        printed = PAPER[dataset][ANCHORED.get(method, method)][place]
        if own > 0:
            name = f"{TITLES[dataset]}, {METHODS[method].label}, {metric.upper()}: {number(own)} for {printed:g}"
            found[name] = own <= printed
    return found


def reached_with_anchors(records: Records) -> dict[str, bool]:
    """Return the same of the rows with anchors."""
    return reached(records, list(ANCHORED))


def not_rejected(records: Records, method: str) -> tuple[int, int]:
    """Return in how many two-sample tests draws are not distinguished from fresh samples, and how many there are."""
    p = records.values("test", "p_value", method=method)
    return sum(one > LEVEL for one in p), len(p)


def entry(records: Records, dataset: str, method: str) -> str:
    """Return W1 of a row over its floor, as text."""
    over = mean(records.values("rows", "w1", dataset=dataset, method=method)) / floor_of(records, dataset)
    return f"{over:.2f}" if over < 100 else "diverged"


def pictures(records: Records, folder: Path, docs: Path) -> None:
    """Draw the samples of rows beside fresh ones."""
    seed = records.settings["seeds"][0]
    for name, title in TITLES.items():
        problem = Problem(name, seed, folder)
        panels = {"Fresh samples": problem.fresh(DOTS)}
        panels |= {METHODS[m].label: load_file(problem.path("draws", m))["draws"][:DOTS] for m in PICTURED}
        plane = {head: points[:, [0, -1]] for head, points in panels.items()}  # surfaces are curves without the second
        w1 = [records.values("rows", "w1", dataset=name, method=method) for method in PICTURED]
        captions = ["", *(f"W1 {number_and_spread(values)}" for values in w1)]
        plots.scatter_panels(plane, docs / f"table1_{name}.png", captions=captions, title=title)


STUDY = Study(
    "table1",
    "the paper's Table 1: four datasets, four samplers, three metrics, beside other rules, outsiders and the floor",
    Config(),
    stages,
    pictures,
    globals(),
    {
        "reached": Claim("the numbers of Score RW, Score MALA and Score pCN in Table 1", reached),
        "with_anchors": Claim("the same numbers, by acceptances learned with anchors", reached_with_anchors),
    },
)

"""What `experiments.table1` computes: scores, acceptances, draws and distances, each a cell that is kept."""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from scipy.stats import qmc
from torch import Tensor, nn

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    Always,
    Learned,
    LineIntegral,
    MultilevelDenoising,
    RandomWalk,
    Recipe,
    ScoreFit,
    Target,
    _random,
    anneal,
    annealing,
    datasets,
    fit_acceptance,
    fit_score,
    metrics,
    metropolis_hastings,
    sample,
    tune,
)
from scoremh._files import require_same
from scoremh.balance_matching import MATCHING, PRESETS, RECIPE, FormName
from scoremh.balance_matching.fitting import LOW
from scoremh.experiments import _outsiders
from scoremh.experiments._cells import Task, compute
from scoremh.networks import AcceptanceMLP, NoiseConditionalMLP
from scoremh.types import Acceptance, Kernel, Proposal

LAWS: dict[str, Callable[..., Tensor]] = {
    "moons": datasets.moons,
    "pinwheel": datasets.pinwheel,
    "s_curve": datasets.s_curve,
    "swiss_roll": datasets.swiss_roll,
}
EVEN = ("moons",)  # of n points scikit-learn puts exactly half on either moon, evenly spaced: they are not independent
SAMPLES = 10_000  # to learn from, as in the paper
LEVEL = 0.3  # noise at which chains run, in units of the samples' spread: their modes are connected there
DOWN = (*annealing.geometric(LEVEL, 0.02, 8), 0.0)  # from there to the samples themselves
ANNEALED = (5.0, 0.02, 25, 20, 0.5)  # highest and lowest noise, levels, steps at each, step size over noise squared
FLOW = (5.0, 0.02, 40)  # highest and lowest noise, levels: the flow alone
RATE = 0.5  # of the training of a paper's network, times its width
POTENTIAL = 4  # times as many steps for a potential, each of which costs half as much and less
TESTED = 2000  # points of a two-sample test
METRICS = ("w1", "w2", "mmd", "exact_w1", "exact_w2")
PROPOSED = ("rw", "mala", "pcn")


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Args:
        words: What it is.
        proposal: "rw", "mala" or "pcn"; None where there are no chains of one kernel.
        form: Of a learned acceptance.
        rule: One that is not learned.
    """

    words: str
    proposal: str | None = None
    form: FormName | None = None
    rule: Acceptance | None = None


METHODS: dict[str, Method] = {
    "ula": Method("ULA", "mala", rule=Always()),
    "score_rw": Method("Score RW, free", "rw", "free"),
    "score_mala": Method("Score MALA, free", "mala", "free"),
    "score_pcn": Method("Score pCN, free", "pcn", "free"),
    "antisymmetric": Method("Score MALA, antisymmetric", "mala", "antisymmetric"),
    "potential": Method("Score MALA, potential", "mala", "potential"),
    "simpson": Method("MALA, Simpson", "mala", rule=LineIntegral()),
    "adaptive": Method("MALA, adaptive integral", "mala", rule=LineIntegral("adaptive")),
    "simpson_low": Method("MALA, Simpson, at the fit's own level", "mala", rule=LineIntegral()),
    "annealed": Method("Annealed MALA, Simpson"),
    "annealed_ula": Method("Annealed ULA"),
    "sobol_flow": Method("Probability flow from Sobol points"),
    "kde": Method("Kernel density estimate"),
    "spline_flow": Method("Neural spline flow"),
}
PAPER_METHODS = ("ula", "score_rw", "score_mala", "score_pcn")


@dataclass(frozen=True)
class Config:
    """A preset: how much of it all.

    Args:
        seeds: Of everything: samples, training, chains, and what they are judged on.
        draws: By dataset, chains of a row and points it is judged on.
        training: By dataset, steps of an acceptance's training.
        chain_steps: Of a chain.
        floors: Fresh samples whose distances give the floor, per seed.
        tests: Two-sample tests of `tested`, each on other chains, in turn from the scores of all seeds.
        tested: Rows that are tested.
    """

    seeds: tuple[int, ...]
    draws: Mapping[str, int]
    training: Mapping[str, int]
    chain_steps: int
    floors: int
    tests: int
    tested: tuple[str, ...] = ("annealed", "simpson", "sobol_flow")


def seeded(offset: int, seed: int) -> torch.Generator:
    """Return a generator: 0 samples, 1 score, 2 judged on, 3 acceptances, 4 chains, 5 starts, 6 floor, 7 tests."""
    return torch.Generator().manual_seed(1000 * seed + offset)


@dataclass(frozen=True)
class Problem:
    """A dataset with a seed: its samples, the files of what was learned from them, and the proposals.

    Args:
        name: Of the dataset.
        seed: Of everything.
        out: Folder of the files.
    """

    name: str
    seed: int
    out: Path

    @cached_property
    def x(self) -> Tensor:
        """The samples to learn from."""
        return LAWS[self.name](SAMPLES, generator=seeded(0, self.seed))

    def judged(self, n: int) -> Tensor:
        """Return the samples that draws are judged on, of which nothing else knows."""
        return LAWS[self.name](n, generator=seeded(2, self.seed))

    def path(self, *words: str) -> Path:
        """Return where something is kept."""
        return self.out / (" ".join([self.name, str(self.seed), *words]) + ".safetensors")

    @cached_property
    def score(self) -> ScoreFit:
        """The learned score."""
        return ScoreFit.load(self.path("score"))

    def start(self, n: int, level: float, generator: torch.Generator) -> Tensor:
        """Draw from a normal law with the mean of the samples, and their covariance with noise of this level."""
        z = torch.randn(n, self.x.shape[1], generator=generator)
        root = torch.linalg.cholesky(_covariance(self.score))
        return torch.addmm(self.x.mean(0), z, root.mT, alpha=math.sqrt(1 + level**2))

    def proposal(self, kind: str, step: float, level: float = LEVEL) -> Proposal:
        """Return a proposal that fits the samples with noise of this level."""
        covariance = _covariance(self.score)
        wide = (1 + level**2) * covariance
        if kind == "rw":
            return RandomWalk(step, covariance=wide)
        return MALA(step, covariance=covariance) if kind == "mala" else PCN(step, self.x.mean(0), covariance=wide)


def _covariance(score: ScoreFit) -> Tensor:
    assert score.covariance is not None
    return score.covariance


def fitted(problem: Problem) -> dict[str, Any]:
    """Learn the score, with residual layers: the surfaces are bent in two directions and flat in the third."""
    x, generator = problem.x, seeded(1, problem.seed)
    with _random.weights(generator):
        net = NoiseConditionalMLP(tuple(x.shape[1:]), residual=True)
    fit = fit_score(x, net=net, generator=generator)
    fit.save(problem.path("score"))
    return {"seconds": fit.seconds, "level": fit.level}


def tuned(problem: Problem, kind: str, level: float = LEVEL) -> dict[str, Any]:
    """Find the step at which a proposal is accepted at its most efficient rate by the integrated score."""
    target = problem.score.at(level)
    rule = LineIntegral() if kind == "mala" else LineIntegral("adaptive")
    step = tune(
        lambda step: metropolis_hastings(target, problem.proposal(kind, step, level), rule),
        problem.start(500, level, seeded(5, problem.seed + 100)),
        start=0.05,
        upper=1.0 if kind == "pcn" else math.inf,
        generator=seeded(4, problem.seed + 100),
    )
    return {"step": step}


def trained(problem: Problem, kind: str, form: FormName, step: float, steps: int) -> dict[str, Any]:
    """Learn an acceptance for the law blurred by `LEVEL`, with the paper's network where the form is the paper's."""
    generator, row = seeded(3, problem.seed), PRESETS[problem.name]
    x = problem.x
    root = torch.linalg.cholesky(_covariance(problem.score))
    blurred = x + LEVEL * torch.randn(x.shape, generator=generator) @ root.mT
    net = None
    if form != "potential":
        with _random.weights(generator):
            net = AcceptanceMLP(tuple(x.shape[1:]), row.hidden, row.blocks)
        if form == "free":
            nn.init.constant_(net.last.bias, LOW)
    recipe = replace(RECIPE, steps=POTENTIAL * steps)
    if net is not None:  # wide ones take small steps: with RECIPE's rate the widest do not learn
        recipe = replace(RECIPE, steps=steps, rate=RATE / row.hidden)
    fit = fit_acceptance(
        problem.score.at(LEVEL),
        problem.proposal(kind, step),
        blurred,
        form=form,
        net=net,
        recipe=recipe,
        generator=generator,
    )
    fit.save(problem.path(form, kind))
    return {"seconds": fit.seconds, "held_out": fit.history["held_out"][-1]}


def drawn(
    problem: Problem, name: str, config: Config, steps: Mapping[str, float], n: int, chain_seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """Return n draws by a method, and what was counted on the way."""
    method, generator, begin = METHODS[name], seeded(4, chain_seed), seeded(5, chain_seed)
    started = time.perf_counter()
    counted: dict[str, Any] = {}
    if name == "kde":
        draws = _outsiders.kernel_density(problem.x, n, generator)
    elif name == "spline_flow":
        draws = _outsiders.spline_flow(problem.x, n, generator)
    elif name == "sobol_flow":
        draws = _sobol_flow(problem, n, chain_seed)
    elif method.proposal is None:
        draws, counted = _annealed(problem, n, begin, generator, Always() if name == "annealed_ula" else LineIntegral())
    else:
        draws, counted = _chains(problem, name, method, config, steps, n, begin, generator)
    return draws, counted | {"seconds": time.perf_counter() - started}


def _sobol_flow(problem: Problem, n: int, seed: int) -> Tensor:
    """Carry evenly spread points of the broad normal law down to the samples: no chains, no further randomness."""
    high, low, levels = FLOW
    x, fit = problem.x, problem.score
    u = torch.from_numpy(qmc.Sobol(x.shape[1], seed=seed).random_base2(math.ceil(math.log2(n)))[:n])
    z = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9)).to(x)
    start = torch.addmm(x.mean(0), z, torch.linalg.cholesky(_covariance(fit)).mT, alpha=math.sqrt(1 + high**2))
    return annealing.flow(fit.at, [*annealing.karras(high, low, levels), 0.0], start, covariance=fit.covariance)


def _annealed(
    problem: Problem, n: int, begin: torch.Generator, generator: torch.Generator, rule: Acceptance
) -> tuple[Tensor, dict[str, Any]]:
    high, low, count, steps, ratio = ANNEALED
    fit = problem.score

    def kernel_at(level: float) -> Kernel:
        return metropolis_hastings(fit.at(level), problem.proposal("mala", ratio * level**2), rule)

    start = problem.start(n, high, begin)
    found = anneal(
        kernel_at, annealing.karras(high, low, int(count)), start, steps_per_level=int(steps), generator=generator
    )
    sharp = annealing.flow(fit.at, [low, 0.0], found.draws, covariance=fit.covariance)
    rates = found.acceptance_rates
    return sharp, {"acceptance": sum(rates) / len(rates), "score_calls": found.score_calls, "steps": sum(found.steps)}


def _chains(
    problem: Problem,
    name: str,
    method: Method,
    config: Config,
    steps: Mapping[str, float],
    n: int,
    begin: torch.Generator,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, Any]]:
    fit, kind = problem.score, method.proposal
    assert kind is not None
    assert fit.level is not None
    low = name.endswith("_low")
    level = fit.level if low else LEVEL
    target = fit.at(level)
    target = Target(target.score, None, fit.support) if low else target
    start = problem.start(n, level, begin)
    if low:
        start = start.clamp(fit.support.low, fit.support.high)
    rule = method.rule
    if rule is None:
        assert method.form is not None
        saved = AcceptanceFit.load(problem.path(method.form, kind))
        rule = Learned(saved, "direct" if method.form == "free" else "metropolis")
    step = steps["low" if low else kind]
    kernel = metropolis_hastings(target, problem.proposal(kind, step, level), rule)
    chains = sample(kernel, start, draws=1, thin=config.chain_steps, generator=generator, threads=1)
    down = (level, 0.0) if low else DOWN
    draws = annealing.flow(fit.at, down, chains.draws[:, -1], covariance=fit.covariance)
    return draws, {
        "acceptance": chains.acceptance_rate,
        "score_calls": chains.score_calls,
        "steps": config.chain_steps,
        "step": step,
        "level": level,
    }


def distances(x: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return all metrics between two samples, or nothing where the first ran away to infinity."""
    if not bool(x.isfinite().all()):
        return dict.fromkeys(METRICS)
    return {**metrics.paper_metrics(x, y)._asdict(), "exact_w1": metrics.w1(x, y), "exact_w2": metrics.w2(x, y)}


def nearest(x: Tensor, y: Tensor) -> float:
    """Return the median distance of points of x to the nearest of y: 0 for copies."""
    return float(torch.cat([torch.cdist(part, y).amin(1) for part in x.split(1000)]).median())


def judged(problem: Problem, name: str, n: int) -> dict[str, Any]:
    """Compare a row's draws with samples that nothing has seen."""
    draws, y = load_file(problem.path("draws", name))["draws"], problem.judged(n)
    ended = bool(draws.isfinite().all())
    near = nearest(draws, problem.x) if ended else None
    return {**distances(draws, y), "nearest": near, "fresh_nearest": nearest(y, problem.x)}


def floor(problem: Problem, n: int, number: int) -> dict[str, Any]:
    """Compare a fresh sample with those that draws are judged on; and one of independent draws, where it is not so."""
    law, generator, y = LAWS[problem.name], seeded(6, 100 * problem.seed + number), problem.judged(n)
    found: dict[str, Any] = {**distances(law(n, generator=generator), y)}
    if problem.name in EVEN:
        found["independent"] = distances(independent(problem.name, n, generator), y)
    return found


def independent(name: str, n: int, generator: torch.Generator) -> Tensor:
    """Return n independent draws: where the generator spreads its points evenly, some of a hundred times as many."""
    if name not in EVEN:
        return LAWS[name](n, generator=generator)
    many = LAWS[name](100 * n, generator=generator)
    return many[torch.randperm(len(many), generator=generator)[:n]]


def tested(problem: Problem, name: str, config: Config, steps: Mapping[str, float], number: int) -> dict[str, Any]:
    """Ask a two-sample test to tell a row's draws from fresh samples."""
    draws, _ = drawn(problem, name, config, steps, TESTED, 10_000 + number)
    fresh = independent(problem.name, TESTED, seeded(7, number))
    return {"p_value": metrics.two_sample_test(draws, fresh, generator=seeded(7, 1000 + number)).p_value}


def swept(problem: Problem, name: str, config: Config, step: float, n: int) -> dict[str, Any]:
    """Draw with another step, and compare: a potential serves every step."""
    draws, counted = drawn(problem, name, config, {"mala": step}, n, problem.seed)
    return distances(draws, problem.judged(n)) | counted


def _cell(task: Task, config: Config, out: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    what, name, seed, *rest = task
    problem, n = Problem(name, int(seed), out), config.draws[name]
    steps = {kind: known[f"steps / {name} / {seed} / {kind}"]["step"] for kind in STEPS} if what in STEPPED else {}
    match what:
        case "score":
            return fitted(problem)
        case "steps" if rest[0] == "low":
            level = problem.score.level
            assert level is not None
            return tuned(problem, "mala", level)
        case "steps":
            return tuned(problem, rest[0])
        case "acceptance":
            kind, form = rest
            return trained(problem, kind, form, steps[kind], config.training[name])  # type: ignore[arg-type]
        case "draws":
            draws, counted = drawn(problem, rest[0], config, steps, n, int(seed))
            save_file({"draws": draws.clone()}, problem.path("draws", rest[0]))
            return {**counted}
        case "metrics":
            return judged(problem, rest[0], n)
        case "sweep":
            return swept(problem, rest[0], config, float(rest[1]) * steps["mala"], n)
        case "floor":
            return floor(problem, n, int(rest[0]))
        case _:
            return tested(problem, rest[0], config, steps, int(rest[1]))


STEPS = (*PROPOSED, "low")
STEPPED = ("acceptance", "draws", "test", "sweep")
SWEEP = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # steps, as multiples of the tuned one
SWEPT = ("ula", "potential")


def run(config: Config, out: Path, *, workers: int | None = None) -> dict[str, Any]:
    """Compute all cells that are not in the folder yet, seed by seed.

    Args:
        config: How much of it all.
        out: Folder of the cells and the files.
        workers: Cells at the same time; as many as there are cores if None.
    """
    out.mkdir(parents=True, exist_ok=True)
    stages = [stage for seed in config.seeds for stage in _stages(config, str(seed))]
    turns = [(k, config.seeds[k % len(config.seeds)]) for k in range(config.tests)]
    stages.append(
        [("test", name, str(seed), row, str(k)) for name in LAWS for row in config.tested for k, seed in turns]
    )
    _same(out / "settings.json", settings(config))
    cells: dict[str, Any] = {}
    for tasks in stages:
        cell = partial(_cell, config=config, out=out, known=cells)
        cells |= compute(tasks, cell, out / "cells.json", workers=workers)
    return cells


def settings(config: Config) -> dict[str, Any]:
    """Return all that decides the numbers, but for the code and its versions."""
    networks = {
        name: {"hidden": row.hidden, "blocks": row.blocks, "rate": RATE / row.hidden} for name, row in PRESETS.items()
    }
    chosen = {
        **asdict(config),
        "samples": SAMPLES,
        "score": {"net": "NoiseConditionalMLP(residual=True)", "loss": repr(MultilevelDenoising()), **asdict(Recipe())},
        "level": LEVEL,
        "down": DOWN,
        "annealed": dict(
            zip(("high", "low", "levels", "steps", "step_size_over_noise_squared"), ANNEALED, strict=True)
        ),
        "flow": dict(zip(("high", "low", "levels"), FLOW, strict=True)),
        "acceptance": {"networks": networks, "matching": {k: repr(v) for k, v in MATCHING.items()}, **asdict(RECIPE)},
        "potential": {"steps_times": POTENTIAL},
        "sweep": SWEEP,
        "tested_points": TESTED,
        "outsiders": {
            "bandwidths": _outsiders.BANDWIDTHS,
            "spline_flow": _outsiders.SIZES,
            **asdict(_outsiders.RECIPE),
        },
        "methods": {name: method.words for name, method in METHODS.items()},
    }
    return json.loads(json.dumps(chosen))  # type: ignore[no-any-return]


def _same(path: Path, now: dict[str, Any]) -> None:
    """Refuse a folder whose cells were computed with other settings."""
    if path.exists():
        require_same(now, json.loads(path.read_text()), path.parent, "table", "folder")
    else:
        path.write_text(json.dumps(now, indent=1))


def _stages(config: Config, seed: str) -> list[list[Task]]:
    """Return the cells of one seed, each stage after those it needs."""
    untrained = [name for name, method in METHODS.items() if not method.form]
    trained = {name: method for name, method in METHODS.items() if method.form}
    trainings = sorted({(str(method.proposal), str(method.form)) for method in trained.values()})

    def rows(what: str, *words: str) -> list[Task]:
        return [(what, name, seed, word) for name in LAWS for word in words]

    floors = rows("floor", *map(str, range(config.floors)))
    swept = [("sweep", "swiss_roll", seed, row, str(factor)) for row in SWEPT for factor in SWEEP]
    return [
        [("score", name, seed) for name in LAWS],
        rows("steps", *STEPS),
        rows("draws", *untrained),
        [*floors, *rows("metrics", *untrained)],
        [("acceptance", name, seed, *training) for name in LAWS for training in trainings],
        rows("draws", *trained),
        [*rows("metrics", *trained), *swept],
    ]

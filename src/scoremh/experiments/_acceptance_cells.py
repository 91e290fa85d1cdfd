"""What `experiments.acceptance` measures: every training is a cell of its own, and those that are there are kept."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor

from scoremh import (
    MALA,
    AcceptanceFit,
    Always,
    BalanceMatching,
    DegenerateRuleWarning,
    Exact,
    Learned,
    LineIntegral,
    RandomWalk,
    Recipe,
    ScoreFit,
    Target,
    Taylor,
    datasets,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
    targets,
)
from scoremh.acceptance import BalancedRule, RatioRule
from scoremh.acceptance.learned import LearnedBalance
from scoremh.balance_matching import MATCHING, RECIPE, FormName, Pairs
from scoremh.experiments._cells import Task, compute
from scoremh.networks import AcceptanceMLP
from scoremh.types import Acceptance, Point, Proposal, TargetLike

CELLS_FILE = "acceptance.json"
SAMPLES, FRESH, CHAINS, EXACT = 10_000, 10_000, 20_000, 1_000_000
SEEDS = (1, 2, 3)
BUDGETS = (25, 100, 400)  # CPU seconds of training
KINDS = list(product(("potential", "antisymmetric", "free"), ("independent", "proposed", "mixed")))
# The pairing of each form with the least error after the shortest training: the first to be trained longer.
BEST = {"potential": "independent", "antisymmetric": "proposed", "free": "proposed"}
FIGURE_1 = targets.GaussianMixture([0.8, 0.2], [[5.0, 5.0], [-5.0, -5.0]])
LAWS: dict[str, Callable[..., Tensor]] = {"mixture": FIGURE_1.sample, "moons": datasets.moons}
PROPOSALS: dict[str, dict[str, Proposal]] = {
    "moons": {"random walk": RandomWalk(0.3), "MALA": MALA(0.02)},  # eps = .2
    "mixture": {"random walk": RandomWalk(1.7), "MALA": MALA(0.5)},
}
AS_IN_THE_PAPER = BalanceMatching(entropy=2.0)
REFERENCE = LineIntegral("gauss", nodes=16)


class Corner(RatioRule):
    """Integrate along the sides of a rectangle and not along its diagonal: the same, where the score is a gradient."""

    balance = "metropolis"

    def log_density_change(self, current: Point, proposed: Point, *, target: Target) -> Tensor:
        """Return the integral by way of the corner that has the first coordinate of x' and the others of x."""
        corner = Point(torch.cat([proposed.x[:, :1], current.x[:, 1:]], 1))
        legs = (current, corner), (corner, proposed)
        first, second = (REFERENCE.log_density_change(*leg, target=target) for leg in legs)
        return first + second


UNTRAINED: dict[str, BalancedRule] = {
    "Simpson": LineIntegral(),
    "trapezoid": LineIntegral("trapezoid"),
    "16 nodes, around a corner": Corner(),
}


def seeded(offset: int, seed: int = 1) -> torch.Generator:
    """Return a generator: 0 for samples, 1 for the score, 2 for what is judged on, 3 for acceptances, 4 for chains."""
    return torch.Generator().manual_seed(100 * seed + offset)


def learned_score(
    law: str, out: Path, *, samples: int | None = None, recipe: Recipe | None = None, seed: int = 1
) -> tuple[ScoreFit, Tensor]:
    """Return the score of a law, fitted by the defaults or from the file it is kept in, and the samples it is of."""
    x = LAWS[law](SAMPLES if samples is None else samples, generator=seeded(0, seed))
    path = out / f"{law}.safetensors"
    if not path.exists():
        fit_score(x, recipe=recipe, generator=seeded(1, seed)).save(path)
    return ScoreFit.load(path), x


def pairs_of(target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> tuple[Point, Point, Target]:
    """Return points, a candidate for each inside the support, and the target they are of."""
    known = Target(target.score, target.log_density, target.support)
    current = Point.at(x, known, frozenset({"score"}))
    candidates = proposal.sample(current, generator=seeded(4, seed))
    inside = torch.ones(len(x), dtype=torch.bool) if known.support is None else known.support(candidates)
    return current.map(lambda part: part[inside]), Point.at(candidates[inside], known, frozenset({"score"})), known


@torch.inference_mode()
def metropolis(rule: BalancedRule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> Tensor:
    """Return the Metropolis acceptance of a candidate for every point, by a rule."""
    current, proposed, known = pairs_of(target, proposal, x, seed)
    return rule.log_ratio(current, proposed, target=known, proposal=proposal).clamp(max=0).exp()


def error(rule: BalancedRule, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> float:
    """Return the mean of |a - a_16|, the Metropolis acceptance by a rule and by the line integral with 16 nodes."""
    accept, reference = (metropolis(one, target, proposal, x, seed) for one in (rule, REFERENCE))
    return float((accept - reference).abs().mean())


def roles(law: str, name: str, form: FormName) -> tuple[Proposal, dict[str, Proposal]]:
    """Return the proposal to train with, and those to judge with: a potential learns with the first and serves all."""
    proposals = PROPOSALS[law]
    if form == "potential":
        return next(iter(proposals.values())), proposals
    return proposals[name], {name: proposals[name]}


def quality(form: FormName, pairs: Pairs, name: str, seconds: str, seed: str, *, out: Path) -> dict[str, Any]:
    """Train for so many CPU seconds on Moons, and measure the error; a potential serves both proposals."""
    score, x = learned_score("moons", out)
    proposal, judged = roles("moons", name, form)
    matching = replace(MATCHING[form], pairs=pairs)

    def trained(steps: int) -> tuple[AcceptanceFit, float]:
        started = time.process_time()
        recipe = replace(RECIPE, steps=steps, check_every=max(1, steps // 5), patience=None)
        fit = fit_acceptance(
            score,
            proposal,
            x,
            form=form,
            matching=matching,
            recipe=recipe,
            generator=seeded(3, int(seed)),
        )
        return fit, time.process_time() - started

    trained(5)
    (_, few), (_, more) = trained(20), trained(120)
    steps = max(20, int(100 * (float(seconds) - few) / (more - few)))
    fit, taken = trained(steps)
    fresh = datasets.moons(FRESH, generator=seeded(2))
    errors = {key: error(Learned(fit, "metropolis"), score, one, fresh) for key, one in judged.items()}
    accepted = {key: acceptance_rate(Learned(fit), score, one, fresh) for key, one in judged.items()}
    return {"errors": errors, "direct": accepted, "steps": steps, "seconds": taken, "held_out": fit.history["held_out"]}


def acceptance_rate(rule: Acceptance, target: TargetLike, proposal: Proposal, x: Tensor, seed: int = 1) -> float:
    """Return the share of candidates that a rule accepts."""
    one = diagnostics.disagreement(rule, rule, target=target, proposal=proposal, x=x, generator=seeded(4, seed))
    return one.acceptance_rates[0]


def decisions(law: str, name: str, form: FormName, *, out: Path) -> dict[str, Any]:
    """Train by the defaults, and compare with the adaptive line integral of the same score on fresh samples."""
    score, x = learned_score(law, out)
    proposal, judged = roles(law, name, form)
    fit = fit_acceptance(score, proposal, x, form=form, generator=seeded(3))
    fresh = _inside(law, score)
    result: dict[str, Any] = {"seconds": fit.seconds}
    for key, one in judged.items():
        residual = diagnostics.balance_residual(fit, score, one, fresh, generator=seeded(4))
        result[key] = {
            **_against_adaptive(Learned(fit, "metropolis"), score, one, fresh),
            "direct": acceptance_rate(Learned(fit), score, one, fresh),
            "residual": residual.integral.rms,
        }
    return result


def simpson(law: str, *, out: Path) -> dict[str, Any]:
    """Compare Simpson's rule, which needs no training, in the same way."""
    score, _ = learned_score(law, out)
    fresh = _inside(law, score)
    return {key: _against_adaptive(LineIntegral(), score, one, fresh) for key, one in PROPOSALS[law].items()}


def _inside(law: str, score: ScoreFit) -> Tensor:
    """Return the fresh samples that are inside the support."""
    fresh = LAWS[law](FRESH, generator=seeded(2))
    return fresh[score.support(fresh)]


def _against_adaptive(rule: Acceptance, score: ScoreFit, proposal: Proposal, x: Tensor) -> dict[str, Any]:
    """Return how often a rule decides otherwise than the adaptive line integral, and how often both accept."""
    options: dict[str, Any] = {"target": score, "proposal": proposal, "x": x, "generator": seeded(4)}
    found = diagnostics.disagreement(rule, LineIntegral("adaptive"), **options)
    return {"rate": found.rate, "accepted": list(found.acceptance_rates)}


def learned(
    target: TargetLike,
    proposal: Proposal,
    x: Tensor,
    form: FormName,
    matching: BalanceMatching,
    *,
    recipe: Recipe | None = None,
    seed: int = 1,
) -> AcceptanceFit:
    """Train by the defaults, but for the matching; with the paper's entropy from the first weights that torch gives."""
    net = None
    if matching == AS_IN_THE_PAPER:
        first = torch.Generator().manual_seed(3 * seed)
        net = AcceptanceMLP(tuple(x.shape[1:]), hidden=128, blocks=2, generator=first)
    return fit_acceptance(
        target, proposal, x, form=form, matching=matching, net=net, recipe=recipe, generator=seeded(3, seed)
    )


OVERLAPPING = targets.GaussianMixture([0.7, 0.3], [[1.5, 0.0], [-1.5, 0.0]], 0.6 * torch.eye(2).expand(2, 2, 2))
STEPS = 200
MOVES: dict[str, Proposal] = {"random walk": RandomWalk(1.2), "MALA": MALA(0.35)}


class Untrained(NamedTuple):
    """A rule, what it needs, and where it fails, as the page has it."""

    rule: Acceptance
    needs: str
    fails: str


class Trained(NamedTuple):
    """A learned rule, what it needs, and where it fails."""

    form: FormName
    balance: LearnedBalance
    matching: BalanceMatching
    needs: str
    fails: str


SCORE, JACOBIAN = "a score", "a score, its Jacobian"
PAIRS, POINTS = "samples, a score, one proposal with a smooth log q", "samples, a score"
RULES = {
    "`Exact()`": Untrained(Exact(), "a log density", "nowhere"),
    "`Always()`": Untrained(
        Always(), "nothing (with MALA, a score)", "at every step, more at larger ones; with MALA it is ULA"
    ),
    "`Taylor(1)`": Untrained(Taylor(1), SCORE, "one-sided: not even one pair of points is balanced"),
    "`Taylor(2)`": Untrained(Taylor(2), JACOBIAN, "as `Taylor(1)`"),
    "`Taylor(2, average=True)`": Untrained(Taylor(2, average=True), JACOBIAN, "at all but small steps"),
    '`LineIntegral("trapezoid")`, `Taylor(1, average=True)`': Untrained(
        LineIntegral("trapezoid"), SCORE, "with MALA the density cancels"
    ),
    "`LineIntegral()`, Simpson": Untrained(
        LineIntegral(), SCORE, "where the score bends within a step: large steps, narrow structures"
    ),
    '`LineIntegral("gauss")`': Untrained(LineIntegral("gauss"), SCORE, "as Simpson, at larger steps"),
    '`LineIntegral("adaptive")`': Untrained(
        LineIntegral("adaptive"), SCORE, "where the score on the way is wrong: between modes without samples"
    ),
}
ANOTHER_STEP = "with any other step"
LEARNED = {
    "`Learned`, free, direct, entropy for scale": Trained(
        "free", "direct", AS_IN_THE_PAPER, PAIRS, "the ratio is pulled to 1: out of balance, more with a larger lambda"
    ),
    "`Learned`, free, direct": Trained("free", "direct", MATCHING["free"], PAIRS, ANOTHER_STEP),
    "`Learned`, free, metropolis": Trained("free", "metropolis", MATCHING["free"], PAIRS, ANOTHER_STEP),
    "`Learned`, antisymmetric, metropolis": Trained(
        "antisymmetric", "metropolis", MATCHING["antisymmetric"], PAIRS, ANOTHER_STEP
    ),
    "`Learned`, potential, metropolis": Trained(
        "potential",
        "metropolis",
        MATCHING["potential"],
        POINTS,
        "where the score is far from a gradient: it learns the nearest one",
    ),
}


def bias(name: str, move: str, *, out: Path) -> dict[str, Any]:
    """Run chains from exact draws of two overlapping modes with the true score, and see how far they drift off."""
    proposal = MOVES[move]
    if name in RULES:
        rule = RULES[name].rule
    else:
        form, balance, matching, *_ = LEARNED[name]
        x = OVERLAPPING.sample(SAMPLES, generator=seeded(0))
        rule = Learned(learned(OVERLAPPING, proposal, x, form, matching), balance)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateRuleWarning)
        kernel = metropolis_hastings(OVERLAPPING, proposal, rule)
    start = OVERLAPPING.sample(CHAINS, generator=seeded(2))
    chains = sample(kernel, start, draws=1, warmup=STEPS, generator=seeded(4))
    last, exact = chains.draws[:, -1].double(), OVERLAPPING.sample(EXACT, generator=seeded(2, 2)).double()
    distances = [float(stats.ks_2samp(a.numpy(), b.numpy()).statistic) for a, b in zip(last.T, exact.T, strict=True)]
    floor = [float(stats.ks_2samp(a.numpy(), b.numpy()).statistic) for a, b in zip(start.T, exact.T, strict=True)]
    return {
        "distance": max(distances),
        "floor": max(floor),
        "acceptance": chains.acceptance_rate,
        "calls": chains.score_calls / (CHAINS * (STEPS + 1)),
    }


def untrained(out: Path) -> dict[str, dict[str, float]]:
    """Return the errors of the rules that need no training, by proposal."""
    score, _ = learned_score("moons", out)
    fresh = datasets.moons(FRESH, generator=seeded(2))
    return {
        walk: {name: error(rule, score, proposal, fresh) for name, rule in UNTRAINED.items()}
        for walk, proposal in PROPOSALS["moons"].items()
    }


def tasks() -> list[Task]:
    """Return all cells, the most telling first."""
    walks = list(PROPOSALS["moons"])

    def trainings(budget: int, *, best: bool) -> list[Task]:
        chosen = [(form, pairs) for form, pairs in KINDS if (BEST[form] == pairs) == best]
        every = [(*kind, walk) for kind in chosen for walk in (["both"] if kind[0] == "potential" else walks)]
        return [("quality", *task, str(budget), str(seed)) for task in every for seed in SEEDS]

    short, longer, longest = BUDGETS
    judged: list[Task] = [("simpson", law) for law in LAWS]
    judged += [("decisions", law, "both", "potential") for law in LAWS]
    judged += [("decisions", law, walk, form) for law in LAWS for walk in walks for form in ("antisymmetric", "free")]
    rules: list[Task] = [("bias", name, move) for move in MOVES for name in (*RULES, *LEARNED)]
    first = [*trainings(short, best=True), *trainings(short, best=False)]
    rest = [trainings(budget, best=best) for best in (True, False) for budget in (longer, longest)]
    return list(chain(judged, first, rules, *rest))


CELLS: dict[str, Callable[..., dict[str, Any]]] = {
    "quality": quality,
    "decisions": decisions,
    "simpson": simpson,
    "bias": bias,
}


def _cell(task: Task, out: Path) -> dict[str, Any]:
    return CELLS[task[0]](*task[1:], out=out)


def _score(task: Task, out: Path) -> dict[str, Any]:
    return {"seconds": learned_score(task[1], out)[0].seconds}


def run(out: Path, *, workers: int | None = None) -> dict[str, Any]:
    """Compute all cells that are not in the folder yet."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / CELLS_FILE
    compute([("score", law) for law in LAWS], partial(_score, out=out), path, workers=workers)
    return compute(tasks(), partial(_cell, out=out), path, workers=workers)

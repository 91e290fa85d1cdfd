"""Acceptance rules over step sizes: W1 on Swiss roll, and the two figures of Appendix A on Moons."""

from functools import partial
from pathlib import Path

from studies.framework import Cell, Claim, Records, Study
from studies.sweeps import findings, ratios
from studies.sweeps.cells import KINDS, Sweep, stages
from studies.sweeps.findings import METRICS, compared, draw, good_factors, means, step_sizes

CLOSE = 1.5  # times the least W1
SWISS_ROLL_RULES = ("ula", "score_mala", "potential", "simpson")
SWISS_ROLL_FACTORS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
TAYLOR_RULES = ("taylor1", "taylor1_averaged", "taylor2", "taylor2_averaged", "simpson", "gauss3")
LEARNED_RULES = ("ula", "taylor1_averaged", "score_mala", "potential", "simpson")
MOONS_FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)


def presets(
    dataset: str, rules: tuple[str, ...], factors: tuple[float, ...], draws: int, training: tuple[int, int]
) -> dict[str, Sweep]:
    """Return the presets of a sweep; training steps are those of the small and of the paper's."""
    ends = (0.25, 1.0, factors[-1])
    return {
        "quick": Sweep(dataset, rules, ends, (11,), draws=500, chain_steps=100, training=training[0], floors=2),
        "paper": Sweep(
            dataset, rules, factors, (1, 2, 3), draws=draws, chain_steps=300, training=training[1], floors=5
        ),
    }


def good_steps(records: Records) -> dict[str, list[float]]:
    """Return the step sizes at which W1 is close to its least over all rules, by rule."""
    h = step_sizes(records)
    return {rule: [h[f] for f in factors] for rule, factors in good_factors(records, "w1", CLOSE).items()}


def reach(records: Records) -> dict[str, float]:
    """Return the largest good factor of every rule by W1, 0 if there is none."""
    return {rule: max(factors, default=0.0) for rule, factors in good_factors(records, "w1", CLOSE).items()}


def robust(records: Records) -> bool:
    """Return whether Score MALA is good up to a larger step size than ULA."""
    return reach(records)["score_mala"] > reach(records)["ula"]


def averaged_is_better(records: Records) -> dict[str, bool]:
    """Return by metric whether averaged Taylor-1 is better than both rules without averaging."""
    against = {
        m: [compared(records, "taylor1_averaged", other, m) for other in ("taylor1", "taylor2")] for m in METRICS
    }
    return {metric: all(better > worse for better, worse in counts) for metric, counts in against.items()}


def averaged_is_second_order(records: Records) -> dict[str, bool]:
    """Return by metric whether averaged Taylor-1 is as good as averaged Taylor-2 at half of the steps or more."""
    worse = {metric: compared(records, "taylor1_averaged", "taylor2_averaged", metric)[1] for metric in METRICS}
    return {metric: 2 * count <= len(records.settings["factors"]) for metric, count in worse.items()}


def learned_is_better(records: Records) -> bool:
    """Return whether score-based MALA is better than averaged Taylor-1 at more steps than it is worse, by MMD."""
    better, worse = compared(records, "score_mala", "taylor1_averaged", "mmd")
    return better > worse


def close_to_learned(records: Records) -> list[float]:
    """Return the step sizes at which averaged Taylor-1 is within twice the least MMD of score-based MALA."""
    learned, taylor = (means(records, rule, "mmd") for rule in ("score_mala", "taylor1_averaged"))
    return [h for f, h in step_sizes(records).items() if taylor[f] <= 2 * min(learned.values())]


def taylor_stages(config: Sweep) -> list[list[Cell]]:
    """Return the cells of the sweep, and the comparisons of log ratios."""
    return [*stages(config), ratios.cells(config)]


def picture(records: Records, folder: Path, docs: Path, *, name: str, metrics: tuple[str, ...], title: str) -> None:
    """Draw the metrics over step sizes."""
    draw(records, docs / f"{name}.png", metrics, title)


STEP_SIZE = Study(
    "step-size",
    "W1 against the step size on Swiss roll: how far does an accept step let steps grow?",
    presets("swiss_roll", SWISS_ROLL_RULES, SWISS_ROLL_FACTORS, 2000, (80, 300)),
    stages,
    KINDS,
    partial(picture, name="step-size", metrics=("w1",), title="Swiss roll: W1 against the step size"),
    globals() | vars(findings),
    {"robust": Claim("Score MALA is more robust to the step size than ULA, by W1 on Swiss roll", robust)},
)
TAYLOR = Study(
    "taylor",
    "Appendix A, first figure: Taylor rules with and without averaging, beside integrals of the score, on Moons",
    presets("moons", TAYLOR_RULES, MOONS_FACTORS, 1000, (0, 0)),
    taylor_stages,
    (*KINDS, ratios.Ratio),
    partial(picture, name="taylor", metrics=tuple(METRICS), title="Taylor rules and integrals of the score on Moons"),
    globals() | vars(findings),
    {
        "better": Claim("averaged Taylor-1 is better than Taylor-1 and Taylor-2 without averaging", averaged_is_better),
        "second_order": Claim("averaged Taylor-1 is about as good as averaged Taylor-2", averaged_is_second_order),
    },
)
TAYLOR_VS_LEARNED = Study(
    "taylor-vs-learned",
    "Appendix A, second figure: MMD over step sizes, of Taylor rules, learned acceptances and Simpson, on Moons",
    presets("moons", LEARNED_RULES, MOONS_FACTORS, 1000, (250, 1000)),
    stages,
    KINDS,
    partial(picture, name="taylor-vs-learned", metrics=("mmd",), title="Moons: MMD against the step size"),
    globals() | vars(findings),
    {"learned": Claim("score-based MALA outperforms the averaged Taylor rule", learned_is_better)},
)

"""W1 against the step size on Swiss roll: how far does an accept step let steps grow?"""

from pathlib import Path

from scoremh.experiments import _sweeps as sweeps
from scoremh.experiments._figures import Found
from scoremh.experiments._sweeps import RULES, Sweep

CLOSE = 1.5  # times the least W1
FACTORS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
LINES = ("ula", "score_mala", "potential", "simpson")
PRESETS = {
    "quick": Sweep("swiss_roll", LINES, (0.25, 1.0, 3.0), (11,), draws=500, chain_steps=100, training=80, floors=2),
    "paper": Sweep("swiss_roll", LINES, FACTORS, (1, 2, 3), draws=2000, chain_steps=300, training=300, floors=5),
}


def section(found: Found) -> str:
    """Say what was found."""
    good, h = sweeps.good_steps(found, "w1", CLOSE), sweeps.steps(found)
    reach = {name: max(factors, default=0.0) for name, factors in good.items()}
    said = "; ".join(
        f"{RULES[name].words} at {', '.join(f'{h[factor]:.3g}' for factor in factors) or 'none'}"
        for name, factors in good.items()
    )
    last = f"{RULES['score_mala'].words} {'agrees' if reach['score_mala'] > reach['ula'] else 'does **not** agree'}"
    return (
        "## Swiss roll: W1 against the step size\n\n"
        "The paper: Score MALA is more robust to the step size than ULA, by W1 on Swiss roll.\n\n"
        f"{sweeps.setting(found)} The free form is trained for every step anew, a potential once for all.\n\n"
        f"{sweeps.shown(found, 'w1')}\n\n"
        f"W1 is below {CLOSE} times its least over all rows at these steps: {said}. With the paper {last}, by the "
        f"largest of them; "
        f"{RULES['simpson'].words}, which needs no training, reaches as far as any: "
        f"{'yes' if reach['simpson'] == max(reach.values()) else 'no'}."
    )


def picture(found: Found, path: Path) -> None:
    """Draw W1 over steps."""
    sweeps.draw(found, path, ["w1"], "Swiss roll: W1 against the step size")


FIGURE = sweeps.figure("step-size", PRESETS, section, picture)
run = FIGURE.run

"""Appendix A, second figure: MMD over steps, of ULA, averaged Taylor, learned acceptances and Simpson, on Moons."""

from pathlib import Path

from scoremh.experiments import _sweeps as sweeps
from scoremh.experiments._figures import Found
from scoremh.experiments._sweeps import RULES, Sweep

LINES = ("ula", "taylor1_averaged", "score_mala", "potential", "simpson")
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
PRESETS = {
    "quick": Sweep("moons", LINES, (0.25, 1.0, 4.0), (11,), draws=500, chain_steps=100, training=250, floors=2),
    "paper": Sweep("moons", LINES, FACTORS, (1, 2, 3), draws=1000, chain_steps=300, training=1000, floors=5),
}


def section(found: Found) -> str:
    """Say what was found."""
    cells, h = sweeps.table(found), sweeps.steps(found)

    def better(name: str, other: str) -> list[float]:
        return [f for f in h if cells[name, f, "mmd"].mean < cells[other, f, "mmd"].mean]

    def least(name: str) -> float:
        return min(cells[name, f, "mmd"].mean for f in h)

    learned, count = better("score_mala", "taylor1_averaged"), len(h)
    simpson = better("simpson", "score_mala")
    good = [f for f in h if cells["taylor1_averaged", f, "mmd"].mean <= 2 * least("score_mala")]
    where = f"at h = {', '.join(f'{h[f]:.3g}' for f in good)}" if good else "at no step"
    return (
        "## Appendix A: Taylor rules and learned acceptances\n\n"
        "The paper: for some range of steps the averaged Taylor rule is a very good approximation; score-based MALA "
        "still outperforms it.\n\n"
        f"{sweeps.setting(found)} The free form is trained for every step anew.\n\n"
        f"{sweeps.shown(found, 'mmd')}\n\n"
        f"{RULES['score_mala'].words} is better than {RULES['taylor1_averaged'].words} at {len(learned)} of {count} "
        f"steps: {'agrees' if 2 * len(learned) > count else 'does **not** agree'} with the paper. The Taylor rule "
        f"comes within twice the least MMD of {RULES['score_mala'].words} {where}. Simpson, on the same score and "
        f"without training, is better than {RULES['score_mala'].words} at {len(simpson)} of {count}."
    )


def picture(found: Found, path: Path) -> None:
    """Draw MMD over steps."""
    sweeps.draw(found, path, ["mmd"], "Moons: MMD against the step size")


FIGURE = sweeps.figure("taylor-vs-learned", PRESETS, section, picture)
run = FIGURE.run

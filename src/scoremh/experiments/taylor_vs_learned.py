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

    def least(name: str) -> float:
        return min(cells[name, f, "mmd"].mean for f in h)

    count = len(h)
    learned, behind = sweeps.compared(found, "score_mala", "taylor1_averaged", "mmd")
    simpson, short = sweeps.compared(found, "simpson", "score_mala", "mmd")
    good = [f for f in h if cells["taylor1_averaged", f, "mmd"].mean <= 2 * least("score_mala")]
    where = f"at h = {', '.join(f'{h[f]:.3g}' for f in good)}" if good else "at no step"
    return (
        "## Appendix A: Taylor rules and learned acceptances\n\n"
        "The paper: for some range of steps the averaged Taylor rule is a very good approximation; score-based MALA "
        "still outperforms it.\n\n"
        f"{sweeps.setting(found)} The free form is trained for every step anew.\n\n"
        f"{sweeps.shown(found, 'mmd')}\n\n"
        f"Beyond twice the standard error over seeds, {RULES['score_mala'].words} is better than "
        f"{RULES['taylor1_averaged'].words} at {learned} of {count} steps, and worse at {behind}: "
        f"{'agrees' if learned > behind else 'does **not** agree'} with the paper. The Taylor rule comes within twice "
        f"the least MMD of {RULES['score_mala'].words} {where}. Simpson, on the same score and without training, is "
        f"better than {RULES['score_mala'].words} at {simpson} of {count}, and worse at {short}."
    )


def picture(found: Found, path: Path) -> None:
    """Draw MMD over steps."""
    sweeps.draw(found, path, ["mmd"], "Moons: MMD against the step size")


FIGURE = sweeps.figure("taylor-vs-learned", PRESETS, section, picture)
run = FIGURE.run

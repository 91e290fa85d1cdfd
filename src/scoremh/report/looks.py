"""One colour and one marker for every kind of sampler, and for every verdict, on all pictures and pages.

A sampler is known by its name: by its proposal where that is not a Langevin step, else by its acceptance rule. Colours
have a contrast of 3 to white and are told apart by colour-blind readers; markers tell them apart in grey.
"""

import re
from collections.abc import Sequence

INK, PAPER, DATA = "#1b1f24", "#ffffff", "#8a929c"
COLOURS = ("#2a6f97", "#e07a1f", "#00a05a", "#53109c", "#7d5800", "#e33bc0", "#0d461d")
BLUE, ORANGE, GREEN, VIOLET, OLIVE, PINK, FOREST = COLOURS
KNOWN = {  # words of a name, of which the first that it has decides, with colour and marker
    "exact draws|exact$|samples|fresh|real|original": (DATA, "x"),
    "through noise": (VIOLET, "*"),
    "replica exchange": (FOREST, "h"),
    "reverse diffusion|probability flow": (PINK, "X"),
    "hamiltonian": (VIOLET, "p"),
    "barker": (PINK, "*"),
    "walk|rw": (OLIVE, "d"),
    "pcn": (PINK, "h"),
    "plain ula": (PINK, ">"),
    "ula": (ORANGE, "s"),
    "simpson|line integral|gauss": (GREEN, "D"),
    "taylor": (OLIVE, "<"),
    "potential": (VIOLET, "^"),
    "antisymmetric": (PINK, "v"),
    "free|siamese|score mala|scoremh": (BLUE, "o"),
    "kernel": (OLIVE, "s"),
    "copula": (PINK, "^"),
    "flow": (GREEN, "D"),
    "exact rule|density|mala": (FOREST, "P"),
    "^good$": (GREEN, "o"),
    "^usable$": (ORANGE, "^"),
    "^do not use$": (PINK, "X"),
}


def known_look(name: str) -> tuple[str, str] | None:
    """Return the colour and the marker of a sampler or verdict, None of any other name.

    >>> known_look("MALA, Simpson") == known_look("line integral, learned score") != known_look("ULA")
    True
    >>> known_look("held-out loss")
    """
    found = (look for words, look in KNOWN.items() if re.search(rf"\b(?:{words})\b", name, re.IGNORECASE))
    return next(found, None)


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the marker of every name: those of its sampler, else the first ones that no other has."""
    found = {name: look for name in names if (look := known_look(name))}
    taken = {colour for colour, _ in found.values()}
    spare = [pair for pair in zip(COLOURS, "o^sDv<P", strict=True) if pair[0] not in taken]
    unknown = [name for name in names if name not in found]
    return found | {name: spare[i % len(spare)] for i, name in enumerate(unknown)}


def look(name: str) -> dict[str, str]:
    """Return the colour and the marker of a sampler as keywords of matplotlib: `axis.plot(x, y, **look("ULA"))`."""
    return dict(zip(("color", "marker"), looks([name])[name], strict=True))


def colour_numbers(samplers: Sequence[str]) -> list[int]:
    """Return a colour for each sampler of a report, as its number: the first is for the run's own, which comes first.

    >>> colour_numbers(["draws", "ULA", "mine", "Score MALA"])
    [0, 1, 2, 3]
    """
    wanted = [BLUE, *((known_look(name) or (DATA, ""))[0] for name in samplers[1:])]
    spare = (colour for colour in COLOURS if colour not in wanted)
    found = [next(spare) if colour == DATA or colour in wanted[:i] else colour for i, colour in enumerate(wanted)]
    return [COLOURS.index(colour) for colour in found]

"""The paper's Figure 1: do samplers find the weights of two modes that lie far apart, and from which starts?

The target is 0.8 N((5, 5), I) + 0.2 N((-5, -5), I). What a chain's last draw says about the weights is worth no more
than the number of times the chains went from one mode to the other, so that number stands beside it, and so does the
law the chains start from.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from scoremh import plots
from scoremh.experiments import _figures as figures
from scoremh.experiments import _mixture_cells as measured
from scoremh.experiments._acceptance_cells import FIGURE_1
from scoremh.experiments._cells import markdown, over_seeds
from scoremh.experiments._mixture_cells import FIRST, STARTS, Config

WEIGHT = 0.8
PAPER = {"ULA": 0.52, "RW": 0.79, "MALA": 0.79}  # weights of (5, 5); it states neither the start nor the steps
CLOSE = 0.03  # what counts as the paper's number
JUMPING = 0.1  # jumps per chain from which on chains count as jumping
KEPT = 0.1  # how far from the weight of their start chains may end that count as keeping it
BIASED = 0.25  # how far off a variance within a mode is named
PRESETS = {
    "quick": Config(seeds=(11,), chains=300, steps=600),
    "paper": Config(seeds=(1, 2, 3)),
}
Weights = Mapping[str, Mapping[str, Sequence[figures.Record]]]
"""From a sampler and a start to its records."""


def by_start(found: figures.Found) -> dict[str, dict[str, list[figures.Record]]]:
    """Return the records of samplers that were run from every start, by sampler and start.

    Args:
        found: The results.
    """
    names = dict.fromkeys(record["sampler"] for record in found["chains"])
    every = {
        name: {start: figures.where(found["chains"], sampler=name, start=start) for start in STARTS} for name in names
    }
    return {name: starts for name, starts in every.items() if all(starts.values())}


def label(name: str, settings: figures.Record) -> str:
    """Return a sampler's name with its step.

    Args:
        name: Of the sampler.
        settings: The preset.
    """
    kind = name.removeprefix("narrow ")
    if not kind.endswith("RW"):
        return f"{kind}, h = {settings['step_size']:g}"
    return f"{kind}, std {settings['std' if name.startswith('narrow') else 'wide_std']:g}"


def reading(every: Weights, settings: figures.Record) -> list[str]:
    """Say in words what the numbers show, from those of every seed and start.

    Args:
        every: The records.
        settings: The preset.
    """
    runs = {name: [record for there in starts.values() for record in there] for name, starts in every.items()}
    jumps = {name: [record["jumps"] for record in there] for name, there in runs.items()}
    still = [name for name in every if max(jumps[name]) < JUMPING]
    said = []
    for name in [name for name in every if name not in still]:
        ends = [record["weight"] for record in runs[name]]
        good = [start for start, there in every[name].items() if right(there, settings)]
        where = "every start" if len(good) == len(STARTS) else "; ".join(good) or "no start"
        said.append(
            f"- {label(name, settings)} jumps {min(jumps[name]):.2g} to {max(jumps[name]):.2g} times per chain, by "
            f"seed and start, and finds the weights from {where}: it ends at {min(ends):.3f} to {max(ends):.3f}."
        )
    for learned, kind in ((False, "the true score or density"), (True, "a learned score")):
        if names := [name for name in still if ("Score" in name) == learned]:
            records = [record for name in names for record in runs[name]]
            moved = max(abs(record["weight"] - record["start_weight"]) for record in records)
            ends = sorted(record["weight"] for record in records)
            kept = "keep the weights of their start" if moved <= KEPT else "do not keep the weights of their start"
            said.append(
                f"- Chains with {kind} that stay in a mode ({'; '.join(label(name, settings) for name in names)}; "
                f"fewer than {JUMPING:g} jumps each) {kept}: they end anywhere from {ends[0]:.2f} to {ends[-1]:.2f}, "
                f"at most {moved:.3f} from the share of starting points that are nearer to (5, 5)."
            )
    for name in every:
        variances = [record["variance"] for record in runs[name]]
        if max(abs(variance - 1) for variance in variances) > BIASED:
            said.append(
                f"- {label(name, settings)}: the variance around a mode is {min(variances):.2f} to "
                f"{max(variances):.2f} for 1, by seed and start."
            )
    return said


def right(records: Sequence[figures.Record], settings: figures.Record) -> bool:
    """Say whether a weight is within three standard errors, of as many independent draws, of 0.8.

    Args:
        records: One for each seed.
        settings: The preset.
    """
    error = math.sqrt(WEIGHT * (1 - WEIGHT) / (settings["chains"] * len(records)))
    return abs(figures.mean(records, "weight") - WEIGHT) <= 3 * error


def verdict(every: Weights, settings: figures.Record) -> list[str]:
    """Say which starts bring the paper's numbers back, and whether one of them brings back all.

    Args:
        every: The records.
        settings: The preset.
    """

    def starts_for(name: str, paper: str) -> list[str]:
        return [start for start in STARTS if abs(figures.mean(every[name][start], "weight") - PAPER[paper]) <= CLOSE]

    said = []
    for paper, weight in PAPER.items():
        for name in [name for name in (paper, f"narrow {paper}") if name in every]:
            starts = starts_for(name, paper)
            where = f"comes back from {'; '.join(starts)}" if starts else "comes back from none of these starts"
            said.append(f"- {label(name, settings)}: the paper's {weight:g} {where}.")
    if not set(PAPER) <= set(every):
        return said
    both = [start for start in starts_for("ULA", "ULA") if start in starts_for("MALA", "MALA")]
    apart = max(
        abs(figures.mean(every["ULA"][start], "weight") - figures.mean(every["MALA"][start], "weight"))
        for start in STARTS
    )
    first = figures.mean(every["MALA"][FIRST], "weight")
    kept = "finds the weights" if right(every["MALA"][FIRST], settings) else "keeps wrong weights"
    said.append(
        f"- That ULA misses the weights where MALA finds them: **{'agrees' if both else 'does not agree'}**. "
        f"{'; '.join(both) if both else 'No start of these'} gives the paper's weights for both. From the same start, "
        f"ULA and MALA end at most {apart:.3f} apart. From {FIRST}, MALA with the true density {kept}: {first:.3f}."
    )
    return said


def section(found: figures.Found) -> str:
    """Say what was found.

    Args:
        found: The results.
    """
    settings, every = found["settings"], by_start(found)
    weights = [["sampler", "the paper", *(f"from {start}" for start in STARTS)]]
    original = over_seeds(figures.values(found["original"], "weight"))
    weights.append(["original, independent draws", f"{WEIGHT:g}", *[original] * len(STARTS)])
    moves = [["sampler", *(f"from {start}" for start in STARTS), "acceptance", "variance"]]
    for name, starts in every.items():
        ends = [over_seeds(figures.values(there, "weight")) for there in starts.values()]
        weights.append([label(name, settings), f"{PAPER[name]:g}" if name in PAPER else "", *ends])
        jumps = [f"{figures.mean(there, 'jumps'):.2g}" for there in starts.values()]
        others = [f"{figures.mean(starts[FIRST], key):.3f}" for key in ("acceptance", "variance")]
        moves.append([label(name, settings), *jumps, *others])
    seeds = sorted({record["seed"] for record in found["chains"]})
    paragraphs = (
        "## Figure 1: two modes that lie far apart",
        f"The paper, on 0.8 N((5, 5), I) + 0.2 N((-5, -5), I): the weight of the first mode is {PAPER['ULA']:g} by ULA "
        f"with the true score, {PAPER['RW']:g} by RW and {PAPER['MALA']:g} by MALA with the true density; "
        'samples of ULA "misrepresent the relative weights", standard MH algorithms "significantly alleviate this '
        'problem". It states neither where its chains start nor their steps.',
        f"{settings['chains']:,} chains of {settings['steps']:,} steps from every start, the last draw of each; ULA "
        f"and all MALA with h = {settings['step_size']:g}, random walks with std {settings['wide_std']:g}, half the "
        f"distance between the modes, and {settings['std']:g}. Score RW and Score MALA have a score learned from "
        f"{settings['samples']:,} samples ({settings['score_steps']:,} steps of `fit_score`) and a free acceptance, as "
        f"trained ({settings['acceptance_steps']:,} steps of `fit_acceptance`); the box of the samples is part of "
        f"their target, and their starts are clamped into it. {FIRST} is half-way between the modes; the law itself "
        f"means independent draws of its own, 0.8 and 0.2. Seeds {', '.join(map(str, seeds))}; mean and standard "
        "deviation over them. A draw belongs to the mode it is nearer to.",
        "Weight of (5, 5):",
        markdown(weights),
        f"Jumps from one mode to the other, per chain, after the first {settings['settling']:,} steps; and, from "
        f"{FIRST}, the acceptance rate and the variance of a coordinate around its mode (1 for the law):",
        markdown(moves),
        "\n".join([*reading(every, settings), *verdict(every, settings)]),
        f"A weight counts as the paper's within {CLOSE:g}, as found within three standard errors of as many "
        "independent draws. Where chains from between the modes go is decided by the score there; a learned one has "
        "seen hardly a sample there.",
    )
    return "\n\n".join(paragraphs)


def picture(found: figures.Found, path: Path) -> None:
    """Draw the first seed's last draws of chains from between the modes.

    Args:
        found: The results.
        path: The file to write.
    """
    settings, every = found["settings"], by_start(found)
    seed = settings["seeds"][0]
    shown = dict(zip(["original"], figures.where(found["original"], seed=seed), strict=False))
    for name in ("ULA", "RW", "MALA", "Score RW", "Score MALA"):
        for record in figures.where(every.get(name, {}).get(FIRST, []), seed=seed):
            shown[label(name, settings)] = record
    points = {name: torch.tensor(record["points"]) for name, record in shown.items()}
    plots.scatter_panels(
        points,
        path,
        captions=[caption(record) for record in shown.values()],
        groups={name: measured.nearer(places) for name, places in points.items()},
        log_density=FIGURE_1.log_density,
        title=f"Two modes of weights 0.8 and 0.2: the last draws of {settings['chains']:,} chains from {FIRST}",
    )


def caption(record: figures.Record) -> str:
    """Say the weights and the jumps.

    Args:
        record: Of a sampler, or of independent draws.
    """
    jumps = f"{record['jumps']:.2g} jumps per chain" if "jumps" in record else "independent draws"
    return f"weights {record['weight']:.2f}, {1 - record['weight']:.2f}\n{jumps}"


FIGURE = figures.Figure("mixture", PRESETS, measured.WORDS, measured.stages, measured.cell, section, picture)
run = FIGURE.run

"""The page of the comparison: `page.md`, filled in from the cells that were measured."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.peers.growth import exponent
from benchmarks.peers.law import Law
from benchmarks.peers.moves import GAUSS, HAMILTONIAN, OURS, PLAIN, SIMPSON
from benchmarks.peers.run import (
    CHAINS,
    EQUAL_TIME,
    LAWS,
    MANY_CHAINS,
    MANY_LAW,
    MANY_ROUNDS,
    MAX_SLOW,
    MIXING_CHAINS,
    ROUNDS,
    SEEDS,
    SLOW,
)
from benchmarks.timing import Ratio

JUDGED = (SIMPSON, GAUSS, HAMILTONIAN, PLAIN)
MAX_BIAS = 0.05  # standard deviations of the worst functional, up to which our rules count as right
GOAL = 2.0  # times the effective draws per second of a peer
LEAST_TIMES = 10  # autocorrelation times that a run must be long, or its effective draws flatter the sampler


def page(path: Path) -> str:
    """Return the page."""
    cells = json.loads(path.read_text())["cells"]
    folder = FileSystemLoader(Path(__file__).parent)
    words = Environment(loader=folder, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return words.get_template("page.md").render(
        about=cells["about/1"],
        chains=CHAINS,
        mixing_chains=MIXING_CHAINS,
        many_chains=MANY_CHAINS,
        many=MANY_LAW.label,
        rounds=ROUNDS,
        seeds=", ".join(map(str, SEEDS)),
        equal_time=EQUAL_TIME,
        networks="; ".join(f"{law.label}, {law.hidden}" for law in measured(cells)),
        missing=missing(cells),
        rates=table(cells, "effective draws per CPU second", _rate),
        calls=table(cells, "effective draws per 1,000 score calls", _per_call),
        ratios="\n\n".join(ratios(cells, ours) for ours in JUDGED),
        biases=table(cells, "bias, standard deviations", _bias_cell),
        max_bias=MAX_BIAS,
        slow=", ".join(SLOW),
        max_slow=MAX_SLOW,
        many_rounds=MANY_ROUNDS,
        verdict=verdict(cells),
        costs=costs(cells),
        distances=table(cells, "W1 along the modes / mean of the others", _distance, floor=True),
        many_table=many(cells),
        growth=growth_table(cells.get("growth", {})),
        settings=settings(cells),
    )


def measured(cells: dict[str, Any]) -> list[Law]:
    """Return the laws that some sampler was measured on."""
    return [law for law in LAWS if _times(cells, law.dimension)]


def missing(cells: dict[str, Any]) -> str:
    """Return what was not measured, or nothing."""
    lost = [law.label for law in LAWS if law not in measured(cells)]
    for law in measured(cells):
        every, found = cells[_time_key(law.dimension)], _times(cells, law.dimension)
        lost += [f"{name} in {law.label}" for name in every if name not in found]
    lost += [] if f"time/{MANY_LAW.dimension}/{MANY_CHAINS}/2" in cells else ["two threads"]
    return f" Not measured in this run: {', '.join(lost)}." if lost else ""


def ratio(cells: dict[str, Any], key: str, dimension: int, ours: str, peer: str) -> Ratio:
    """Return the quartiles, over rounds and seeds, of our effective draws per second over a peer's."""
    mine, theirs = (cells[key][name]["seconds"] for name in (ours, peer))
    found = [
        _share(cells, dimension, ours, seed) / _share(cells, dimension, peer, seed) * b / a
        for seed in SEEDS
        for a, b in zip(mine, theirs, strict=True)
    ]
    return Ratio(*statistics.quantiles(found, n=4))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which is the head, as a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(
    cells: dict[str, Any], head: str, cell: Callable[[dict[str, Any], int, str], str], *, floor: bool = False
) -> str:
    """Return a table of all samplers (rows) on all laws (columns)."""
    rows = [[head, *(law.label for law in measured(cells))]]
    for name in _names(cells):
        found = [
            cell(cells, law.dimension, name) if name in _times(cells, law.dimension) else "" for law in measured(cells)
        ]
        rows.append([name, *found])
    if floor:
        rows.append(["exact draws, as many", *(_w1s(cells, f"floor/{law.dimension}") for law in measured(cells))])
    return markdown(rows)


def ratios(cells: dict[str, Any], ours: str) -> str:
    """Return the table of one of our samplers over every peer."""

    def cell(cells: dict[str, Any], dimension: int, peer: str) -> str:
        return _bold(ratio(cells, _time_key(dimension), dimension, ours, peer))

    text = table(cells, f"{ours}, over", cell).splitlines()
    return "\n".join(line for line in text if not line.startswith("| scoremh") or line == text[0])


def verdict(cells: dict[str, Any]) -> str:
    """Return where the goal was missed."""
    missed = []
    for law in measured(cells):
        times = _times(cells, law.dimension)
        for peer in (name for name in times if name not in OURS):
            right = [ours for ours in JUDGED if ours in times and _bias(cells, law.dimension, ours) <= MAX_BIAS]
            found = [ratio(cells, _time_key(law.dimension), law.dimension, ours, peer).median for ours in right]
            best = max(found, default=0.0)
            if round(best, 2) < GOAL:
                missed.append(f"{peer} in {law.label} ({best:.2f})")
    return f"not reached against {'; '.join(missed)}" if missed else "reached against every peer"


def costs(cells: dict[str, Any]) -> str:
    """Return what a gradient of the density network costs blackjax, in score calls of ours."""

    def of_a_call(found: dict[str, Any]) -> float:
        return float(statistics.median(found["seconds"]) / found["calls"])

    parts = []
    for law in measured(cells):
        times = _times(cells, law.dimension)
        one = of_a_call(times[SIMPSON])
        others = [
            f"{of_a_call(times[name]) / one:.2f} ({name})" for name in ("blackjax MALA", "ebmkit MALA") if name in times
        ]
        parts.append(f"{law.label}: {', '.join(others)}")
    return "; ".join(parts)


def many(cells: dict[str, Any]) -> str:
    """Return the table of many chains, with one thread and with two."""
    d, clocks = MANY_LAW.dimension, {1: "one thread, per CPU second", 2: "two threads, per second of the clock"}
    keys = {threads: f"time/{d}/{MANY_CHAINS}/{threads}" for threads in clocks}
    found = {threads: cells[key] for threads, key in keys.items() if key in cells}
    if not found:
        return "Not measured in this run."
    rows = [[f"{MANY_CHAINS:,} chains", *(text for n in found for text in (clocks[n], "our MALA over it"))]]
    for name in found[min(found)]:
        row = [name]
        for threads, times in found.items():
            seconds = statistics.median(times[name]["seconds"])
            rates = [MANY_CHAINS * _share(cells, d, name, seed) / seconds for seed in SEEDS]
            over = ratio(cells, keys[threads], d, SIMPSON, name)
            row += [_spread(rates), "" if name == SIMPSON else _bold(over, name in OURS)]
        rows.append(row)
    return markdown(rows)


def growth_table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return the fitted exponents."""
    rows = [["what grows", "sizes", "milliseconds of a step", "exponent (95% interval)", "from the middle on"]]
    for name, cost in found.items():
        sizes, taken = cost["sizes"], cost["milliseconds"]
        half = len(sizes) // 2 - (len(sizes) % 2 == 0)
        fits = [exponent(sizes, taken), exponent(sizes[half:], taken[half:])]
        shown = [f"{fit.power:.2f} ({fit.low:.2f} to {fit.high:.2f})" for fit in fits]
        rows.append([name, _listed(sizes, ",.0f"), _listed(taken, ".3g"), *shown])
    return markdown(rows)


def settings(cells: dict[str, Any]) -> str:
    """Return the settings of every sampler, law by law where they differ."""
    lines = []
    for name in _names(cells):
        of_laws = {
            law.label: _times(cells, law.dimension)[name]["settings"]
            for law in measured(cells)
            if name in _times(cells, law.dimension)
        }
        same = len(set(of_laws.values())) == 1
        text = next(iter(of_laws.values())) if same else "; ".join(f"{law}: {text}" for law, text in of_laws.items())
        lines.append(f"- {name}: {text}.")
    return "\n".join(lines)


def _rate(cells: dict[str, Any], dimension: int, name: str) -> str:
    seconds = statistics.median(_times(cells, dimension)[name]["seconds"])
    short = any(_is_short(cells[f"mixing/{dimension}/{name}/{seed}"]) for seed in SEEDS)
    return ("≤ " if short else "") + _spread([CHAINS * _share(cells, dimension, name, s) / seconds for s in SEEDS])


def _per_call(cells: dict[str, Any], dimension: int, name: str) -> str:
    calls = _times(cells, dimension)[name]["calls"]
    return _spread([1000 * _share(cells, dimension, name, seed) / calls for seed in SEEDS])


def _bias(cells: dict[str, Any], dimension: int, name: str) -> float:
    found = [cells[f"mixing/{dimension}/{name}/{seed}"] for seed in SEEDS]
    return statistics.median(float(cell.get("bias", 0.0)) for cell in found)


def _bias_cell(cells: dict[str, Any], dimension: int, name: str) -> str:
    if "bias" not in cells[f"mixing/{dimension}/{name}/{SEEDS[0]}"]:
        return ""
    bias = _bias(cells, dimension, name)
    return f"**{bias:.3f}**" if round(bias, 3) > MAX_BIAS else f"{bias:.3f}"


def _distance(cells: dict[str, Any], dimension: int, name: str) -> str:
    made = cells[f"distance/{dimension}/{name}/{SEEDS[0]}"]["transitions"]
    return f"{_w1s(cells, f'distance/{dimension}/{name}')} after {made:,}"


def _w1s(cells: dict[str, Any], key: str) -> str:
    parts = (statistics.median(cells[f"{key}/{seed}"][part] for seed in SEEDS) for part in ("along", "others"))
    return " / ".join(f"{part:.3f}" for part in parts)


def _share(cells: dict[str, Any], dimension: int, name: str, seed: int) -> float:
    return float(cells[f"mixing/{dimension}/{name}/{seed}"]["share"])


def _is_short(found: dict[str, Any]) -> bool:
    times = round(float(found["share"] * found["transitions"]), 6)
    return times < LEAST_TIMES and times != 1  # 1 for draws that are independent


def _spread(values: Sequence[float]) -> str:
    middle, *ends = (_number(value) for value in (statistics.median(values), min(values), max(values)))
    return middle if ends[0] == ends[1] else f"{middle} ({ends[0]} to {ends[1]})"


def _number(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _bold(found: Ratio, known: bool = False) -> str:
    number = f"{found.median:.2f}" if known or round(found.median, 2) >= GOAL else f"**{found.median:.2f}**"
    return f"{number} ({found.low:.2f} to {found.high:.2f})"


def _listed(values: Iterable[float], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def _time_key(dimension: int) -> str:
    return f"time/{dimension}/{CHAINS}/1"


def _times(cells: dict[str, Any], dimension: int) -> dict[str, Any]:
    """Return the times of the samplers that all else was measured of too."""
    last = f"distance/{dimension}/{{}}/{SEEDS[-1]}"
    return {name: found for name, found in cells.get(_time_key(dimension), {}).items() if last.format(name) in cells}


def _names(cells: dict[str, Any]) -> list[str]:
    found = list(dict.fromkeys(name for law in measured(cells) for name in _times(cells, law.dimension)))
    return sorted(found, key=lambda name: OURS.index(name) if name in OURS else len(OURS))

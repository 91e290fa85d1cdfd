"""The contents of a report, and the sections of its page for events that are vectors.

`Contents` is checked when it is built. `sections` yields samples beside the data; histograms, statistics and
correlations of columns; and how the chains move, mix and accept. Notes on the page mention what is left out.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from scoremh import diagnostics
from scoremh._shared import checks
from scoremh.diagnostics import Caution
from scoremh.evaluation import Check, Verdict, number
from scoremh.report import charts
from scoremh.report.charts import (
    SHORTLIST,
    Figure,
    axis,
    clip,
    colours,
    few,
    figure,
    finite,
    limits,
    literal,
    most_different,
    packed,
    share,
    spaced,
)
from scoremh.sampling.chains import Chains

MAX_EVENT_AXES = 3  # axes of a colour image


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents of a report.

    Args:
        title: Title of the page.
        about: Description of the run: command, data, rows, seed, versions, step size.
        columns: Names of the coordinates of an event; not used for images.
        data: Rows `(sample, *event)` to compare the samples with.
        samples: Samples `(sample, *event)` by sampler; the run's own sampler comes first.
        chains: Chains whose draws and acceptance are shown.
        histories: Training records by network: "step", "loss", "held_out" and other names with one number per record.
        metrics: Values by sampler and metric; None for a missing value.
        floors: Mean and spread of each metric between two samples of the data.
        warnings: Warnings to show at the top of the page.
        data_name: Name of the rows in `data` on the page.
        verdict: Verdict on the samples of the run's own sampler.
        checks: Checks behind the verdict.
        texts: By column, a function that returns a number as text: a level, a date, "missing".
    """

    title: str
    about: Mapping[str, str]
    columns: Sequence[str]
    data: Tensor
    samples: Mapping[str, Tensor]
    chains: Chains | None = None
    histories: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    floors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    warnings: Sequence[Caution | str] = ()
    data_name: str = "the data"
    verdict: Verdict | None = None
    checks: Sequence[Check] = ()
    texts: Mapping[str, Callable[[float], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        self._check_data()
        self._check_samples()
        self._check_chains()
        self._check_histories()

    @property
    def images(self) -> bool:
        """Whether an event is an image, (row, column) or (channel, row, column)."""
        return self.data.ndim > 2

    @property
    def run(self) -> str:
        """The name of the run's own sampler."""
        return next(iter(self.samples))

    def _check_data(self) -> None:
        checks.events(self.data, "data", finite=False)
        event = tuple(self.data.shape[1:])
        if len(event) > MAX_EVENT_AXES:
            fix = "Flatten every event to a vector."
            raise ValueError(checks.message("events that are vectors or images", f"events of shape {event}", fix))
        if not self.data.flatten(1).isfinite().all(1).any():
            fix = "Pass rows to compare the samples with."
            raise ValueError(checks.message("data with a finite row", "none", fix))
        if not self.images and len(self.columns) != event[0]:
            fix = "Name every coordinate of an event, in order."
            raise ValueError(checks.message(f"{event[0]} columns, one per coordinate", len(self.columns), fix))

    def _check_samples(self) -> None:
        if not self.samples:
            fix = 'Pass a dict from a sampler\'s name to its samples, for example {"MALA": chains.last}.'
            raise ValueError(checks.message("at least one sampler's samples", "none", fix))
        for name, x in self.samples.items():
            checks.events(x, f"samples[{name!r}]", finite=False)
            self._check_event(f"samples[{name!r}]", tuple(x.shape[1:]))

    def _check_chains(self) -> None:
        if self.chains is None:
            return
        self._check_event("chains.draws", tuple(self.chains.draws.shape[2:]))
        if self.chains.draws.numel() == 0:
            got, fix = checks.describe(self.chains.draws), "Leave chains out if there are no draws."
            raise ValueError(checks.message("chains with at least one draw", got, fix))

    def _check_histories(self) -> None:
        for name, history in self.histories.items():
            lengths = {key: len(values) for key, values in history.items()}
            if len(set(lengths.values())) > 1:
                fix = "Pass one number per record, NaN for a missing one."
                raise ValueError(checks.message(f"histories[{name!r}] of one length", lengths, fix))

    def _check_event(self, name: str, shape: tuple[int, ...]) -> None:
        event = tuple(self.data.shape[1:])
        if shape != event:
            fix = "Pass data, samples and chains in the same coordinates."
            raise ValueError(checks.message(f"{name} to have events of shape {event}, like the data", shape, fix))


MAX_SAMPLERS = 6  # samplers with panels; the table of metrics shows all samplers
MAX_NAME_LENGTH = 60  # characters


@dataclass(frozen=True)
class Panel:
    """A chart or an image, its heading, and its description for screen readers."""

    title: str
    label: str
    figure: Figure | None = None
    image: str | None = None
    frames: dict[str, Any] | None = None
    colour: str = ""
    group: str = ""  # charts of one group move their axes together
    square: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: its head, and rows of texts; on a phone each row becomes a card."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Section:
    """A heading, notes, panels in rows, and a table; two sections with `half` stand side by side if there is room."""

    title: str
    notes: list[str]
    rows: list[list[Panel]] = field(default_factory=list)
    table: Grid | None = None
    half: bool = False


def clouds(contents: Contents) -> list[tuple[str, Tensor]]:
    """Return names and rows: of the data first, then of each sampler with a panel."""
    return [(data_title(contents), contents.data), *islice(contents.samples.items(), MAX_SAMPLERS)]


def data_title(contents: Contents) -> str:
    """Return the name of the data without its article, for headings."""
    return contents.data_name.removeprefix("the ")


def omissions(contents: Contents) -> list[str]:
    """Return notes on samples without a panel, and on rows that are not finite."""
    notes = []
    hidden = len(contents.samples) - MAX_SAMPLERS
    if hidden > 0:
        notes.append(f"{hidden} more samplers are shown only in the table of metrics.")
    for name, x in [(contents.data_name, contents.data), *contents.samples.items()]:
        lost = int((~x.detach().float().flatten(1).isfinite().all(1)).sum())
        if lost:
            notes.append(
                f"{lost:,} of {len(x):,} rows of {clip(name, MAX_NAME_LENGTH)} are not finite and are left out."
            )
    return notes


def lost_draws(draws: Tensor) -> list[str]:
    """Return a note on draws that are not finite, if there are any."""
    lost, every = int((~draws.float().flatten(2).isfinite().all(2)).sum()), draws.shape[0] * draws.shape[1]
    return [f"{lost:,} of {every:,} draws are not finite and are left out."] if lost else []


MAX_HISTOGRAMS, MAX_TABLE_ROWS, MAX_CORRELATED = 8, 30, 24  # columns
LABEL_LENGTH = 12  # characters of a name on the axis of a matrix
QUANTILES = (0.05, 0.5, 0.95)
HEAD = ["column", "", "mean", "sd", "5 %", "50 %", "95 %", "KS", "ESS", "R-hat"]


def marginals(contents: Contents, data: Tensor, own: Tensor, apart: Sequence[float]) -> Section:
    """Return histograms of data and draws, for the columns whose distributions differ most."""
    names, run = contents.columns, clip(contents.run, MAX_NAME_LENGTH)
    shown = sorted(np.argsort([-one for one in apart], kind="stable")[:MAX_HISTOGRAMS].tolist())
    clouds = [(data_title(contents), data), (run, own)]
    panels = [
        Panel(
            clip(names[i], MAX_NAME_LENGTH),
            f"Histograms of {clip(names[i], MAX_NAME_LENGTH)}: {contents.data_name} and {run}",
            charts.histograms([(name, x[:, i]) for name, x in clouds], "", limits(data[:, i], own[:, i])),
        )
        for i in shown
    ]
    across = -(-len(panels) // -(-len(panels) // 4))  # at most four in a row, rows of nearly equal length
    rows = [panels[k : k + across] for k in range(0, len(panels), across)]
    note = f"{contents.data_name[:1].upper()}{contents.data_name[1:]} in grey, {run} in colour."
    hidden = "" if len(shown) == data.shape[1] else f" The {len(shown)} columns that differ most."
    return Section("Histograms", [note + hidden], rows)


def _kolmogorov_smirnov(x: Tensor, y: Tensor) -> float:
    """Return the largest difference between two distribution functions; NaN if one sample is empty."""
    if not len(x) or not len(y):
        return float("nan")
    places = torch.cat([x, y])
    first, second = (torch.searchsorted(z.sort().values, places, right=True).double() / len(z) for z in (x, y))
    return float((first - second).abs().max())


def statistics(contents: Contents, data: Tensor, own: Tensor, apart: Sequence[float]) -> Section:
    """Return a table with statistics of data and draws for each column."""
    mixing = {} if contents.chains is None else _mixing_by_column(contents.chains)
    title, run = data_title(contents), clip(contents.run, MAX_NAME_LENGTH)
    rows = []
    for i in spaced(data.shape[1], MAX_TABLE_ROWS).tolist():
        name = clip(contents.columns[i], MAX_NAME_LENGTH)
        text = contents.texts.get(contents.columns[i])
        rows.append([name, title, *_moments(data[:, i], text), "", "", ""])
        chain = [_shown(float(mixing[key][i])) for key in ("ess_bulk", "r_hat")] if mixing else ["", ""]
        rows.append([name, run, *_moments(own[:, i], text), _shown(apart[i]), *chain])
    note = (
        "KS: largest difference between the distribution functions. ESS and R-hat describe the steps of the chains "
        "below. If each draw is the last of its own chain, they measure how fast a chain forgets its start, not how "
        "good the draws are."
    )
    return Section("Columns", [note], table=Grid(HEAD, rows))


def _mixing_by_column(chains: Chains) -> dict[str, NDArray[np.float64]]:
    """Return statistics of the chains that stayed finite; empty if there are fewer than two."""
    kept = chains.draws.detach().float().flatten(1).isfinite().all(1)
    if int(kept.sum()) < 2:
        return {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # chains that do not move have no R-hat
        finite_chains = replace(
            chains,
            draws=chains.draws[kept],
            acceptance_prob=chains.acceptance_prob[kept],
            accepted=chains.accepted[kept],
            nonfinite=chains.nonfinite[kept],
            outside=chains.outside[kept],
        )
        return diagnostics.summary(finite_chains).table


def _moments(x: Tensor, text: Callable[[float], str] | None) -> list[str]:
    if not len(x):
        return ["—"] * 5
    if text is not None:
        low, high = float(x.min()), float(x.max())
        if text(low) == "missing" and text(high) == number(high):  # numbers, and a place for missing values
            return _moments(x[x > low], None)
        return ["—", "—", *(clip(text(value), LABEL_LENGTH) for value in _quantiles(x, "nearest"))]
    return [_shown(v) for v in (float(x.mean()), float(x.std(correction=0)), *_quantiles(x))]


def _quantiles(x: Tensor, interpolation: str = "linear") -> list[float]:
    some = few(x, 100_000)
    found: list[float] = torch.quantile(some, x.new_tensor(QUANTILES), interpolation=interpolation).tolist()
    return found


def _shown(value: float) -> str:
    return number(value) if np.isfinite(value) else "—"


def correlations(contents: Contents, data: Tensor, own: Tensor) -> Iterator[Section]:
    """Yield rank correlations of the data and of the draws, and their difference, side by side."""
    width = data.shape[1]
    if width < 3 or min(len(data), len(own)) < 3:
        return
    shown = spaced(width, MAX_CORRELATED)
    names = [clip(contents.columns[i], LABEL_LENGTH) for i in shown.tolist()]
    both = [_rank_correlation(x[:, shown]) for x in (data, own)]
    titles = [data_title(contents), clip(contents.run, MAX_NAME_LENGTH), "difference"]
    panels = [
        Panel(title, f"Rank correlations, {title}", _matrix(one, names, end), square=True)
        for title, one, end in zip(titles, [*both, both[1] - both[0]], (1.0, 1.0, 0.5), strict=True)
    ]
    ends = "Spearman's, from -1 (orange) to 1 (blue); the difference from -0.5 to 0.5."
    note = ends if len(shown) == width else f"{ends} {len(shown)} of {width} columns."
    yield Section("Correlations", [note], [panels])


def _rank_correlation(x: Tensor) -> Tensor:
    ranks = torch.from_numpy(stats.rankdata(x.numpy(), axis=0))
    return torch.corrcoef(ranks.mT).nan_to_num()


def _matrix(values: Tensor, names: Sequence[str], end: float) -> dict[str, object]:
    scale = [[0, "--series-1"], [0.5, "--paper"], [1, "--series-0"]]
    numbers = list(range(len(names)))
    ticks = {"tickvals": numbers, "ticktext": list(names), "showgrid": False, "tickfont": {"size": 10}}
    shade = {"type": "heatmap", "z": packed(values), "zmin": -end, "zmax": end, "colorscale": scale, "showscale": False}
    shade |= {"hovertemplate": "%{x}, %{y}: %{z:.2f}<extra></extra>", "xgap": 1, "ygap": 1}
    ends = (-0.5, len(names) - 0.5)
    return figure([shade], axis("", ends, **ticks, tickangle=-60), axis("", ends[::-1], **ticks))


Clouds = Sequence[tuple[str, Tensor]]  # names and rows: the data, the run's own samples, other samples
MAX_TRACES = 3  # columns with traces
MIN_TRACED = 4  # draws per chain; with fewer, mixing is not shown
OUTSIDE_SHARE = 0.01  # share of the points; a note appears if more lie outside the view
ZOOM_NOTE = "Drag to zoom, double-click to see every point, including distant ones."


def sections(contents: Contents) -> Iterator[Section]:
    """Yield the sections that show samples beside the data, and the chains, with texts on the axes of their columns."""
    for section in _sections(contents):
        for panel in (panel for row in section.rows for panel in row):
            _write_texts(panel, contents)
        yield section


MAX_TICKS, TICKS = 12, 5  # values of a column that are all marked on an axis; marks of other columns


def _write_texts(panel: Panel, contents: Contents) -> None:
    """Mark the axes of a chart with the texts of their columns."""
    layout = {} if panel.figure is None else panel.figure["layout"]
    for name, line in layout.items():
        if not name.startswith(("xaxis", "yaxis")) or "tickvals" in line:
            continue
        title = line["title"]["text"] or (panel.title if name == "xaxis" else "")
        column = next((one for one in contents.texts if title in (literal(one), clip(one, MAX_NAME_LENGTH))), None)
        if column is None:
            continue
        values = finite(contents.data)[:, list(contents.columns).index(column)].unique()
        if len(values) > MAX_TICKS:
            values = _ticks(values, contents.texts[column])
        texts = [literal(clip(contents.texts[column](value), LABEL_LENGTH)) for value in values.tolist()]
        line |= {"tickvals": values.tolist(), "ticktext": texts}
        if name == "xaxis" and layout["yaxis"]["title"]["text"] == "density":  # per second, or per level
            layout["yaxis"]["showticklabels"] = False


def _ticks(values: Tensor, text: Callable[[float], str]) -> Tensor:
    """Return a few places for marks: round numbers for numbers, beside the place of missing values; else evenly."""
    first = values[1] if text(float(values[0])) == "missing" else values[0]
    low, high = float(first), float(values[-1])
    places = torch.linspace(low, high, 3, dtype=values.dtype)
    if text(high) == number(high):
        unit = 10 ** np.floor(np.log10((high - low) / TICKS))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor * TICKS >= high - low)
        places = torch.arange(np.ceil(low / step), high / step + 1e-9, dtype=values.dtype) * step
    return places if first == values[0] else torch.cat([values[:1], places])


def _sections(contents: Contents) -> Iterator[Section]:
    """Yield the sections that show samples beside the data, and the chains."""
    samples = [(clip(name, MAX_NAME_LENGTH), finite(x)) for name, x in clouds(contents)]
    data, own = samples[0][1], samples[1][1]
    if data.shape[1] == 1:
        columns, pairs = [0], []
        yield _numbers(contents, samples)
    else:
        pairs = most_different(data, own)
        columns = list(dict.fromkeys(column for pair in pairs for column in pair))
        yield _planes(contents, samples, pairs)
    apart = [_kolmogorov_smirnov(data[:, i], own[:, i]) for i in range(data.shape[1])]
    if data.shape[1] > 1:
        yield marginals(contents, data, own, apart)
    yield statistics(contents, data, own, apart)
    yield from correlations(contents, data, own)
    if contents.chains is not None:
        draws = contents.chains.draws.detach()[..., columns].cpu().double()
        data, names = data[:, columns], [contents.columns[column] for column in columns]
        yield _movie(draws, data, names, contents.data_name)
        yield _traces(draws, data, names, contents.data_name)
        yield from _mixing(draws, names)
        yield _acceptance(contents.chains.acceptance_prob.detach().cpu().double(), draws, data, names)


def _numbers(contents: Contents, samples: Clouds) -> Section:
    """Return histograms of a single column."""
    numbers = [(name, x[:, 0]) for name, x in samples]
    chart = charts.histograms(numbers, contents.columns[0], limits(numbers[0][1], numbers[1][1]))
    label = f"Histograms of {_joined(contents.columns)}: {', '.join(name for name, _ in samples)}"
    notes = [f"Densities in {charts.BINS} bins. {ZOOM_NOTE}", *omissions(contents)]
    return Section(f"Samples beside {data_title(contents)}", notes, [[Panel("", label, chart)]])


def _points_row(planes: Clouds, names: Sequence[str], at: charts.View, group: str) -> list[Panel]:
    """Return scatter plots with the same number of points of each sample, and one of the first two samples together."""
    count = min(charts.POINTS, *(len(x) for _, x in planes if len(x)))
    shades = colours([name for name, _ in planes])
    points = [charts.scatter(few(x, count), at, shade) for (_, x), shade in zip(planes, shades, strict=True)]
    overlay = charts.overlay([few(x, count) for _, x in planes[:2]], at)
    label = f"points of {planes[0][0]} and {planes[1][0]}: {_joined(names)}"
    return [*_row("points", points, planes, names, group), Panel("both", label, overlay, group=group, square=True)]


def _planes(contents: Contents, samples: Clouds, pairs: Sequence[tuple[int, int]]) -> Section:
    """Return scatter plots for pairs of columns and, if there are only two columns, densities."""
    width = len(contents.columns)
    notes = [f"Each plot shows the same number of points, at most {charts.POINTS:,}. {ZOOM_NOTE}"]
    notes += [] if width == 2 else [_choice_note(width, contents)]
    rows: list[list[Panel]] = []
    for place, pair in enumerate(pairs):
        names, planes = [contents.columns[i] for i in pair], [(name, x[:, list(pair)]) for name, x in samples]
        at = charts.view(names, planes[0][1], planes[1][1])
        rows.append(_points_row(planes, names, at, f"pair {place}"))
        if width == 2:
            densities = charts.densities([x for _, x in planes], at)
            rows.append(_row("density", densities, samples, names, f"pair {place}"))
            notes.append(f"Densities are counts in {charts.CELLS} x {charts.CELLS} cells, blurred by one cell.")
        notes += _outside_notes(planes, at, "" if width == 2 else f" of {_joined(names)}")
    return Section(f"Samples beside {data_title(contents)}", notes + omissions(contents), rows)


def _outside_notes(planes: Clouds, at: charts.View, plane: str) -> list[str]:
    """Return notes on samples with many points outside the view."""
    far = {name: at.outside(x) for name, x in planes if at.outside(x) > OUTSIDE_SHARE * len(x)}
    return [f"{count:,} points of {name} lie outside the view{plane}." for name, count in far.items()]


def _row(what: str, figures: Sequence[Figure], samples: Clouds, names: Sequence[str], group: str) -> list[Panel]:
    """Return one panel for each sample."""
    return [
        Panel(
            name if what == "points" else f"{name}, {what}",
            f"{what} of {name}: {_joined(names)}",
            figure,
            colour=shade,
            group=group,
            square=True,
        )
        for (name, _), figure, shade in zip(samples, figures, colours([name for name, _ in samples]), strict=True)
    ]


def _movie(draws: Tensor, data: Tensor, names: Sequence[str], data_name: str) -> Section:
    """Return a section with all chains at the draw that a slider selects."""
    points = finite(draws.flatten(0, 1)[:, :2])
    if len(names) == 1:
        ends = limits(data[:, 0], points[:, 0])
        chart, frames = charts.histogram_movie(data[:, 0], draws[..., 0], names[0], ends)
        chains = f"Histograms of {len(draws):,} chains"
    else:
        at = charts.view(names[:2], data[:, :2], points)
        chart, frames = charts.movie(data[:, :2], draws[..., :2], at)
        chains = share(charts.CHAINS, len(draws), "chains")
    moments = share(len(frames["labels"]), draws.shape[1], "draws")
    notes = [f"{chains} at {moments}, over {data_name} in grey.", *lost_draws(draws)]
    label = f"The chains' {_joined(names[:2])} at the draw of the slider, over {data_name}"
    panel = Panel("", label, chart, frames=frames, square=len(names) > 1)
    return Section("Chains over time", notes, [[panel]], half=True)


def _traces(draws: Tensor, data: Tensor, names: Sequence[str], data_name: str) -> Section:
    lines = [charts.traces(draws[..., i], name, data[:, i]) for i, name in enumerate(names[:MAX_TRACES])]
    titles = [clip(name, MAX_NAME_LENGTH) for name in names]
    panels = [
        Panel(title, f"Lines: {title} of a few chains", chart) for title, chart in zip(titles, lines, strict=False)
    ]
    note = charts.traces_note(len(draws), data_name)
    return Section("Traces", [note], [[panel] for panel in panels], half=True)


def _mixing(draws: Tensor, names: Sequence[str]) -> Iterator[Section]:
    """Yield ranks and autocorrelations of finite chains, if there are enough draws."""
    moving = draws[draws.float().flatten(1).isfinite().all(1)]
    if moving.shape[1] < MIN_TRACED or not len(moving):
        return
    shown = [clip(name, MAX_NAME_LENGTH) for name in names[:MAX_TRACES]]
    chart, parts = charts.ranks(moving[..., 0])
    rank = Panel(f"Ranks of {shown[0]}", f"Histograms of the ranks of {shown[0]}", chart)
    lagged = charts.autocorrelation(moving[..., :MAX_TRACES], shown)
    slow = Panel("Autocorrelation", f"Lines: autocorrelation of {', '.join(shown)}", lagged)
    of = "chain" if parts == "chain" else "quarter of the run"
    note = f"Ranks among all draws, by {of}: flat if all have the same distribution."
    yield Section("Mixing", [note], [[rank, slow]])


def _acceptance(probabilities: Tensor, draws: Tensor, data: Tensor, names: Sequence[str]) -> Section:
    """Return acceptance by step, and by the position at which a move began, which is the previous draw."""
    step = Panel("By step", "Line: mean acceptance at every draw", charts.acceptance_by_step(probabilities))
    moved = draws.shape[1] > 1
    starts, chances = (draws[:, :-1], probabilities[:, 1:]) if moved else (draws, probabilities)
    starts, chances = starts.flatten(0, 1)[:, :2], chances.flatten()
    kept = starts.float().isfinite().all(1) & chances.isfinite()
    starts, chances = starts[kept], chances[kept]
    if len(names) == 1:
        ends = limits(data[:, 0], starts[:, 0])
        chart = charts.acceptance_along(starts[:, 0], chances, names[0], ends)
    else:
        chart = charts.acceptance_by_position(starts, chances, charts.view(names[:2], data[:, :2], starts))
    position = Panel("By position", f"Mean acceptance by {_joined(names[:2])}", chart)
    note = (
        "The mean probability that a move is accepted: over the chains at every draw, and by the position of the "
        f"previous draw, if at least {charts.MIN_MOVES} moves began near it."
    )
    return Section("Acceptance", [note], [[step], [position]], half=True)


def _choice_note(width: int, contents: Contents) -> str:
    """Return a note that explains how the pairs of columns were chosen."""
    among = "" if width <= SHORTLIST else f", among the {SHORTLIST} whose marginals or correlations differ most"
    return (
        f"Of {width:,} columns, these are the pairs on which {clip(contents.run, MAX_NAME_LENGTH)} and "
        f"{contents.data_name} differ most, by energy distance in units of the standard deviations of "
        f"{contents.data_name}{among}."
    )


def _joined(names: Sequence[str]) -> str:
    return " and ".join(clip(name, MAX_NAME_LENGTH) for name in names)

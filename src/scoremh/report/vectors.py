"""The sections of a page whose events are vectors."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from scoremh.report import chain_charts, charts, mixing_charts
from scoremh.report.choice import SHORTLIST, few, finite, limits, most_different
from scoremh.report.columns import correlations, marginals, statistics
from scoremh.report.contents import Contents
from scoremh.report.figures import Figure, clip, colours
from scoremh.report.panels import (
    MAX_NAME_LENGTH,
    Panel,
    Section,
    clouds,
    data_title,
    lost_draws,
    omissions,
    share,
)

Clouds = Sequence[tuple[str, Tensor]]  # the data, the run's own samples, and others
MAX_TRACES = 3  # columns with traces
MIN_TRACED = 4  # draws of a chain
OUTSIDE_SHARE = 0.01  # of the points; a note says so where more lie outside the view
ZOOM_NOTE = "Drag to zoom, double-click to see every point, those far out included."


def sections(contents: Contents) -> Iterator[Section]:
    """Yield samples beside the data, and the chains."""
    samples = [(clip(name, MAX_NAME_LENGTH), finite(x)) for name, x in clouds(contents)]
    data, own = samples[0][1], samples[1][1]
    if data.shape[1] == 1:
        columns, pairs = [0], []
        yield _numbers(contents, samples)
    else:
        pairs = most_different(data, own)
        columns = list(dict.fromkeys(column for pair in pairs for column in pair))
        yield _planes(contents, samples, pairs)
    if data.shape[1] > 1:
        yield marginals(contents, data, own)
    yield statistics(contents, data, own)
    yield from correlations(contents, data, own)
    if contents.chains is not None:
        draws = contents.chains.draws.detach()[..., columns].cpu().double()
        data, names = data[:, columns], [contents.columns[column] for column in columns]
        yield _movie(draws, data, names, contents.data_name)
        yield _traces(draws, data, names, contents.data_name)
        yield from _mixing(draws, names)
        yield _acceptance(contents.chains.acceptance_prob.detach().cpu().double(), draws, data, names)


def _numbers(contents: Contents, samples: Clouds) -> Section:
    """Return histograms of the only column."""
    numbers = [(name, x[:, 0]) for name, x in samples]
    chart = charts.histograms(numbers, contents.columns[0], limits(numbers[0][1], numbers[1][1]))
    label = f"Histograms of {_joined(contents.columns)}: {', '.join(name for name, _ in samples)}"
    notes = [f"Densities in {charts.BINS} bins. {ZOOM_NOTE}", *omissions(contents)]
    return Section(f"Samples beside {data_title(contents)}", notes, [[Panel("", label, chart)]])


def _points_row(planes: Clouds, names: Sequence[str], at: charts.View, group: str) -> list[Panel]:
    """Return as many points of each sample in a plane, and those of the first two together."""
    count = min(charts.POINTS, *(len(x) for _, x in planes if len(x)))
    shades = colours([name for name, _ in planes])
    points = [charts.scatter(few(x, count), at, shade) for (_, x), shade in zip(planes, shades, strict=True)]
    overlay = charts.overlay([few(x, count) for _, x in planes[:2]], at)
    label = f"points of {planes[0][0]} and {planes[1][0]}: {_joined(names)}"
    return [*_row("points", points, planes, names, group), Panel("both", label, overlay, group=group, square=True)]


def _planes(contents: Contents, samples: Clouds, pairs: Sequence[tuple[int, int]]) -> Section:
    """Return points of pairs of columns and, where there are only two columns, densities."""
    width = len(contents.columns)
    notes = [f"As many points of each, {charts.POINTS:,} at most. {ZOOM_NOTE}"]
    notes += [] if width == 2 else [_choice_note(width, contents)]
    rows: list[list[Panel]] = []
    for number, pair in enumerate(pairs):
        names, planes = [contents.columns[i] for i in pair], [(name, x[:, list(pair)]) for name, x in samples]
        at = charts.view(names, planes[0][1], planes[1][1])
        rows.append(_points_row(planes, names, at, f"pair {number}"))
        if width == 2:
            densities = charts.densities([x for _, x in planes], at)
            rows.append(_row("density", densities, samples, names, f"pair {number}"))
            notes.append(f"Densities are counts in {charts.CELLS} x {charts.CELLS} cells, blurred by one.")
        notes += _outside_notes(planes, at, "" if width == 2 else f" of {_joined(names)}")
    return Section(f"Samples beside {data_title(contents)}", notes + omissions(contents), rows)


def _outside_notes(planes: Clouds, at: charts.View, plane: str) -> list[str]:
    """Return notes on samples of which many points lie outside the view."""
    far = {name: at.outside(x) for name, x in planes if at.outside(x) > OUTSIDE_SHARE * len(x)}
    return [f"{count:,} points of {name} lie outside the view{plane}." for name, count in far.items()]


def _row(what: str, figures: Sequence[Figure], samples: Clouds, names: Sequence[str], group: str) -> list[Panel]:
    """Return a panel of every sample."""
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
    """Return all chains at the draw that a slider selects."""
    points = finite(draws.flatten(0, 1)[:, :2])
    if len(names) == 1:
        ends = limits(data[:, 0], points[:, 0])
        chart, frames = chain_charts.histogram_movie(data[:, 0], draws[..., 0], names[0], ends)
        chains = f"Histograms of {len(draws):,} chains"
    else:
        at = charts.view(names[:2], data[:, :2], points)
        chart, frames = chain_charts.movie(data[:, :2], draws[..., :2], at)
        chains = share(chain_charts.CHAINS, len(draws), "chains")
    moments = share(len(frames["labels"]), draws.shape[1], "draws")
    notes = [f"{chains} at {moments}, over {data_name} in grey.", *lost_draws(draws)]
    label = f"The chains' {_joined(names[:2])} at the draw of the slider, over {data_name}"
    panel = Panel("", label, chart, frames=frames, square=len(names) > 1)
    return Section("Chains over time", notes, [[panel]], half=True)


def _traces(draws: Tensor, data: Tensor, names: Sequence[str], data_name: str) -> Section:
    lines = [chain_charts.traces(draws[..., i], name, data[:, i]) for i, name in enumerate(names[:MAX_TRACES])]
    titles = [clip(name, MAX_NAME_LENGTH) for name in names]
    panels = [
        Panel(title, f"Lines: {title} of a few chains", chart) for title, chart in zip(titles, lines, strict=False)
    ]
    note = chain_charts.traces_note(len(draws), data_name)
    return Section("Traces", [note], [[panel] for panel in panels], half=True)


def _mixing(draws: Tensor, names: Sequence[str]) -> Iterator[Section]:
    """Yield ranks and autocorrelations, where there are draws that move."""
    moving = draws[draws.float().flatten(1).isfinite().all(1)]
    if moving.shape[1] < MIN_TRACED or not len(moving):
        return
    shown = [clip(name, MAX_NAME_LENGTH) for name in names[:MAX_TRACES]]
    chart, parts = mixing_charts.ranks(moving[..., 0])
    rank = Panel(f"Ranks of {shown[0]}", f"Histograms of the ranks of {shown[0]}", chart)
    lagged = mixing_charts.autocorrelation(moving[..., :MAX_TRACES], shown)
    slow = Panel("Autocorrelation", f"Lines: autocorrelation of {', '.join(shown)}", lagged)
    of = "chain" if parts == "chain" else "quarter of the run"
    note = f"Ranks among all draws, by {of}: flat where all of them have the same distribution."
    yield Section("Mixing", [note], [[rank, slow]])


def _acceptance(probabilities: Tensor, draws: Tensor, data: Tensor, names: Sequence[str]) -> Section:
    """Return acceptance by step, and by the position where a move began: that of the draw before."""
    step = Panel("By step", "Line: mean acceptance at every draw", chain_charts.acceptance_by_step(probabilities))
    moved = draws.shape[1] > 1
    starts, chances = (draws[:, :-1], probabilities[:, 1:]) if moved else (draws, probabilities)
    starts, chances = starts.flatten(0, 1)[:, :2], chances.flatten()
    kept = starts.float().isfinite().all(1) & chances.isfinite()
    starts, chances = starts[kept], chances[kept]
    if len(names) == 1:
        ends = limits(data[:, 0], starts[:, 0])
        chart = chain_charts.acceptance_along(starts[:, 0], chances, names[0], ends)
    else:
        chart = chain_charts.acceptance_by_position(starts, chances, charts.view(names[:2], data[:, :2], starts))
    position = Panel("By position", f"Mean acceptance by {_joined(names[:2])}", chart)
    note = (
        "The mean probability that a move is accepted: over the chains at every draw, and by the position of the draw "
        f"before, where there are at least {chain_charts.MIN_MOVES} moves."
    )
    return Section("Acceptance", [note], [[step], [position]], half=True)


def _choice_note(width: int, contents: Contents) -> str:
    """Return a note on how the pairs of columns were chosen."""
    among = "" if width <= SHORTLIST else f", among the {SHORTLIST} whose marginals or correlations differ most"
    return (
        f"Of {width:,} columns, these are the pairs on which {clip(contents.run, MAX_NAME_LENGTH)} and "
        f"{contents.data_name} differ most: by energy distance, in units of the standard deviations of "
        f"{contents.data_name}{among}."
    )


def _joined(names: Sequence[str]) -> str:
    return " and ".join(clip(name, MAX_NAME_LENGTH) for name in names)

"""The sections of a page whose events are vectors."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from scoremh.report import chain_charts, charts
from scoremh.report.choice import SHORTLIST, finite, limits, most_different
from scoremh.report.contents import Contents
from scoremh.report.figures import Figure, clip
from scoremh.report.panels import Panel, Section, colour, left_out, lost_draws, part, shown

Clouds = Sequence[tuple[str, Tensor]]  # the data, the run's own samples, and others
TRACES = 3  # columns whose traces are shown


def sections(contents: Contents) -> Iterator[Section]:
    """Yield samples beside data, and the chains."""
    clouds = [(name, finite(x)) for name, x in shown(contents)]
    data, own = clouds[0][1], clouds[1][1]
    if data.shape[1] == 1:
        columns = [0]
        yield _numbers(contents, clouds)
    else:
        pairs = most_different(data, own)
        columns = list(dict.fromkeys(column for pair in pairs for column in pair))
        yield _planes(contents, clouds, pairs)
    if contents.chains is not None:
        draws = contents.chains.draws.detach()[..., columns].cpu().double()
        data, names = data[:, columns], [contents.columns[column] for column in columns]
        yield _through(draws, data, names)
        yield _traces(draws, data, names)
        yield _acceptance(contents.chains.acceptance_prob.detach().cpu().double(), draws, data, names)


def _numbers(contents: Contents, clouds: Clouds) -> Section:
    """Return histograms of the one column."""
    numbers = [(name, x[:, 0]) for name, x in clouds]
    chart = charts.histograms(numbers, contents.columns[0], limits(numbers[0][1], numbers[1][1]))
    panel = Panel(
        "", f"Histograms of {clip(contents.columns[0], 60)}: {', '.join(clip(n, 60) for n, _ in clouds)}", chart
    )
    words = [f"Densities in {charts.BINS} bins. {_ZOOM}", *left_out(contents)]
    return Section("Samples beside data", words, [[panel]])


def _planes(contents: Contents, clouds: Clouds, pairs: Sequence[tuple[int, int]]) -> Section:
    """Return points of pairs of columns and, where there are but two columns, densities."""
    width = len(contents.columns)
    words = [f"At most {charts.POINTS:,} points of each are shown. {_ZOOM}"]
    words += [] if width == 2 else [_chosen(width, contents.run)]
    rows = []
    for number, pair in enumerate(pairs):
        names, parts = [contents.columns[i] for i in pair], [x[:, list(pair)] for _, x in clouds]
        at = charts.view(names, parts[0], parts[1])
        points = [charts.scatter(x, at, colour(i)) for i, x in enumerate(parts)]
        rows.append(_row("points", points, clouds, names, f"pair {number}"))
        if width == 2:
            rows.append(_row("density", charts.densities(parts, at), clouds, names, f"pair {number}"))
            words.append(f"Densities are counts in {charts.CELLS} x {charts.CELLS} cells, blurred by one.")
        far = {name: at.outside(x) for (name, _), x in zip(clouds, parts, strict=True) if at.outside(x) > 0.01 * len(x)}
        place = "" if width == 2 else f" of {_and(names)}"
        words += [f"{count:,} points of {clip(name, 60)} lie outside the view{place}." for name, count in far.items()]
    rows = [rows[0] + rows[1]] if width == 2 and len(clouds) == 2 else rows
    return Section("Samples beside data", words + left_out(contents), rows)


def _row(what: str, figures: Sequence[Figure], clouds: Clouds, names: Sequence[str], group: str) -> list[Panel]:
    """Return a panel of every sample."""
    return [
        Panel(
            clip(name, 60) if what == "points" else f"{clip(name, 60)}, {what}",
            f"{what} of {clip(name, 60)}: {_and(names)}",
            figure,
            colour=colour(i),
            group=group,
            square=True,
        )
        for i, ((name, _), figure) in enumerate(zip(clouds, figures, strict=True))
    ]


def _through(draws: Tensor, data: Tensor, names: Sequence[str]) -> Section:
    """Return all chains at the draw that a slider chooses."""
    points = finite(draws.flatten(0, 1)[:, :2])
    if len(names) == 1:
        ends = limits(data[:, 0], points[:, 0])
        chart, frames = chain_charts.histogram_movie(data[:, 0], draws[..., 0], names[0], ends)
        few = f"Histograms of {len(draws):,} chains"
    else:
        at = charts.view(names[:2], data[:, :2], points)
        chart, frames = chain_charts.movie(data[:, :2], draws[..., :2], at)
        few = part(chain_charts.CHAINS, len(draws), "chains")
    moments = part(len(frames["labels"]), draws.shape[1], "draws")
    words = [f"{few} at {moments}, over the data in grey.", *lost_draws(draws)]
    label = f"The chains' {_and(names[:2])} at the draw of the slider, over the data"
    panel = Panel("", label, chart, frames=frames, square=len(names) > 1)
    return Section("Through the draws", words, [[panel]])


def _traces(draws: Tensor, data: Tensor, names: Sequence[str]) -> Section:
    lines = [chain_charts.traces(draws[..., i], name, data[:, i]) for i, name in enumerate(names[:TRACES])]
    panels = [
        Panel(clip(name, 60), f"Lines: {clip(name, 60)} of a few chains", chart)
        for name, chart in zip(names, lines, strict=False)
    ]
    count = part(chain_charts.TRACED, len(draws), "chains")
    return Section("Traces", [f"{count}. The grey band holds the middle 90 % of the data."], [panels])


def _acceptance(probabilities: Tensor, draws: Tensor, data: Tensor, names: Sequence[str]) -> Section:
    """Return acceptance by step, and by the place where a move began: where the chain stood a draw before."""
    step = Panel("By step", "Line: mean acceptance at every draw", chain_charts.acceptance_by_step(probabilities))
    moved = draws.shape[1] > 1
    began, chance = (draws[:, :-1], probabilities[:, 1:]) if moved else (draws, probabilities)
    began, chance = began.flatten(0, 1)[:, :2], chance.flatten()
    kept = began.float().isfinite().all(1) & chance.isfinite()
    began, chance = began[kept], chance[kept]
    if len(names) == 1:
        ends = limits(data[:, 0], began[:, 0])
        chart = chain_charts.acceptance_along(began[:, 0], chance, names[0], ends)
    else:
        chart = chain_charts.acceptance_by_place(began, chance, charts.view(names[:2], data[:, :2], began))
    place = Panel("By place", f"Mean acceptance by {_and(names[:2])}", chart)
    words = [
        "The mean probability that a move is accepted: over the chains at every draw, and by where the draw before was,"
        f" where there are at least {chain_charts.LEAST}."
    ]
    return Section("Acceptance", words, [[step, place]])


def _chosen(width: int, run: str) -> str:
    """Say how the pairs of columns were chosen."""
    among = "" if width <= SHORTLIST else f", among those {SHORTLIST} whose own laws or correlations differ most"
    return (
        f"Of {width:,} columns, these are the pairs on which {clip(run, 60)} and the data differ most: by energy"
        f" distance, in units of the data's standard deviations{among}."
    )


def _and(names: Sequence[str]) -> str:
    return " and ".join(clip(name, 60) for name in names)


_ZOOM = "Drag to zoom, double-click to see every point, those far out included."

"""The sections of a page whose events are images."""

from collections.abc import Iterator

from scoremh.report import chain_charts, pictures
from scoremh.report.choice import few, finite
from scoremh.report.contents import Contents
from scoremh.report.figures import clip
from scoremh.report.panels import Panel, Section, colour, left_out, lost_draws, part, shown


def sections(contents: Contents) -> Iterator[Section]:
    """Yield samples beside data, and the chains."""
    seen = finite(few(contents.data, 1000))
    ends = (float(seen.min()), float(seen.max()))
    yield _grids(contents, ends)
    if contents.chains is None:
        return
    draws = contents.chains.draws.detach()
    frames = pictures.movie(draws, ends)
    moments = part(len(frames["labels"]), draws.shape[1], "draws")
    label = "Images: one square per chain, at the draw of the slider"
    movie = Panel("", label, image=frames["images"][0], frames=frames, square=True)
    words = [f"{part(frames['chains'], len(draws), 'chains')} at {moments}, a chain in every square."]
    yield Section("Through the draws", words + lost_draws(draws), [[movie]])
    means = draws.flatten(2).mean(2).cpu().double()
    chart = chain_charts.traces(means, "mean of an image", seen.flatten(1).mean(1))
    trace = Panel("Brightness", "Lines: the mean of an image, for a few chains", chart)
    shown_chains = part(chain_charts.TRACED, len(draws), "chains")
    step = chain_charts.acceptance_by_step(contents.chains.acceptance_prob.detach().cpu().double())
    yield Section("Traces", [f"{shown_chains}. The grey band holds the middle 90 % of the data."], [[trace]])
    words = ["The mean probability that a move is accepted, over the chains at every draw."]
    yield Section("Acceptance", words, [[Panel("By step", "Line: mean acceptance at every draw", step)]])


def _grids(contents: Contents, ends: tuple[float, float]) -> Section:
    names, clouds = zip(*shown(contents), strict=True)
    panels = [
        Panel(clip(name, 60), f"Images of {clip(name, 60)}", image=image, colour=colour(i), square=True)
        for i, (name, image) in enumerate(zip(names, pictures.grids(clouds, ends), strict=True))
    ]
    rows, columns = contents.data.shape[-2:]
    small = f" They are averaged down to {pictures.SIDE} pixels." if max(rows, columns) > pictures.SIDE else ""
    channels = contents.data.shape[1] if contents.data.ndim == 4 else 1
    mixed = "" if channels in (1, 3) else f" The mean of their {channels} channels is shown."
    words = [f"{rows} x {columns} pixels, from the least value of the data (black) to the greatest.{small}{mixed}"]
    return Section("Samples beside data", words + left_out(contents), [panels])

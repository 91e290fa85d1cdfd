"""The sections of a page whose events are images."""

from collections.abc import Iterator

from torch import Tensor

from scoremh.report import chain_charts, pictures
from scoremh.report.choice import few, finite
from scoremh.report.contents import Contents
from scoremh.report.figures import clip, colours
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


def sections(contents: Contents) -> Iterator[Section]:
    """Yield samples beside the data, and the chains."""
    seen = finite(few(contents.data, 1000))
    ends = (float(seen.min()), float(seen.max()))
    yield _grids(contents, ends)
    if contents.chains is None:
        return
    draws = contents.chains.draws.detach()
    yield _movie(draws, ends)
    means = draws.flatten(2).mean(2).cpu().double()
    chart = chain_charts.traces(means, "mean of an image", seen.flatten(1).mean(1))
    trace = Panel("Brightness", "Lines: the mean of an image, for a few chains", chart)
    yield Section("Traces", [chain_charts.traces_note(len(draws), contents.data_name)], [[trace]])
    step = chain_charts.acceptance_by_step(contents.chains.acceptance_prob.detach().cpu().double())
    note = "The mean probability that a move is accepted, over the chains at every draw."
    yield Section("Acceptance", [note], [[Panel("By step", "Line: mean acceptance at every draw", step)]])


def _movie(draws: Tensor, ends: tuple[float, float]) -> Section:
    """Return a grid of chains at the draw that a slider selects."""
    frames = pictures.movie(draws, ends)
    moments = share(len(frames["labels"]), draws.shape[1], "draws")
    label = "Images: one square per chain, at the draw of the slider"
    movie = Panel("", label, image=frames["images"][0], frames=frames, square=True)
    note = f"{share(frames['chains'], len(draws), 'chains')} at {moments}, a chain in every square."
    return Section("Chains over time", [note, *lost_draws(draws)], [[movie]])


def _grids(contents: Contents, ends: tuple[float, float]) -> Section:
    names, samples = zip(*clouds(contents), strict=True)
    titles = [clip(name, MAX_NAME_LENGTH) for name in names]
    panels = [
        Panel(title, f"Images of {title}", image=image, colour=shade, square=True)
        for title, image, shade in zip(titles, pictures.grids(samples, ends), colours(titles), strict=True)
    ]
    rows, columns = contents.data.shape[-2:]
    small = f" They are averaged down to {pictures.SIDE} pixels." if max(rows, columns) > pictures.SIDE else ""
    channels = contents.data.shape[1] if contents.data.ndim == 4 else 1
    mixed = "" if channels in (1, 3) else f" The mean of their {channels} channels is shown."
    note = f"{rows} x {columns} pixels, from the smallest value of {contents.data_name} (black) to the largest."
    return Section(f"Samples beside {data_title(contents)}", [note + small + mixed, *omissions(contents)], [panels])

"""The charts of a report: their numbers are those of the tensors, and what they choose to show is right."""

import re

import numpy as np
import pytest
import torch

from scoremh.report import charts, html, images
from tests.report_cases import chains, contents, drawings, figures, image, normal, numbers


def test_points_frames_and_traces_are_the_numbers_of_the_tensors() -> None:
    shown = contents(2)
    assert shown.chains is not None
    every = drawings(html(shown))
    for one, x in zip(every[:3], [shown.data, *shown.samples.values()], strict=True):
        trace = one["figure"]["data"][0]
        as_many = charts.few(x, 40).numpy()  # as the smallest of them has
        np.testing.assert_array_equal(np.stack([numbers(trace["x"]), numbers(trace["y"])], 1), as_many)
    both = every[3]["figure"]["data"]
    assert [numbers(one["x"]).tolist() for one in both] == [
        numbers(every[i]["figure"]["data"][0]["x"]).tolist() for i in (0, 1)
    ]
    movie = next(one for one in every if one["frames"])
    draws = shown.chains.draws.numpy()
    assert movie["frames"]["labels"] == list(range(1, 31))
    np.testing.assert_array_equal(numbers(movie["frames"]["x"]), draws[..., 0].T)
    np.testing.assert_array_equal(numbers(movie["frames"]["y"]), draws[..., 1].T)
    np.testing.assert_array_equal(numbers(movie["figure"]["data"][1]["x"]), draws[:, 0, 0])
    trace = every[every.index(movie) + 1]["figure"]["data"]
    np.testing.assert_array_equal([numbers(line["y"]) for line in trace], draws[[0, 13, 26, 39], :, 0])


def test_long_chains_are_thinned_evenly_from_the_first_to_the_last() -> None:
    draws = torch.arange(2000.0)[:, None] + torch.arange(1000) / 1000
    _, frames = charts.movie(
        normal(5, 2).double(), torch.stack([draws, draws], 2).double(), charts.view("xy", normal(5, 2), normal(5, 2))
    )
    assert len(frames["labels"]) == charts.FRAMES
    assert (frames["labels"][0], frames["labels"][-1]) == (1, 1000)
    seen = numbers(frames["x"])
    assert seen.shape == (charts.FRAMES, charts.CHAINS)
    np.testing.assert_allclose(seen[-1, [0, -1]], [0.999, 1999.999])


def test_histograms_and_densities_hold_all_samples() -> None:
    numbers_page, plane = figures(html(contents(1))), figures(html(contents(2)))
    data = numbers_page[0]["data"][0]
    width = np.diff(numbers(data["x"]))[0]
    assert numbers(data["y"]).sum() * width == pytest.approx(1, abs=0.02)  # a little lies beyond the axis
    assert float((numbers(data["x"]) * numbers(data["y"])).sum() * width) == pytest.approx(
        float(contents(1).data.mean()), abs=0.05
    )
    heat = plane[4]["data"][0]
    assert numbers(heat["z"]).sum() * heat["dx"] * heat["dy"] == pytest.approx(1, abs=0.03)


def test_a_density_is_highest_where_the_points_are() -> None:
    points = torch.tensor([[3.0, -1.0]]).double().expand(50, 2)
    at = charts.View(("x", "y"), (0.0, 4.0), (-2.0, 2.0))
    heat = charts.densities([points], at)[0]["data"][0]
    row, column = np.unravel_index(numbers(heat["z"]).argmax(), (charts.CELLS, charts.CELLS))
    assert heat["x0"] + column * heat["dx"] == pytest.approx(3, abs=heat["dx"])
    assert heat["y0"] + row * heat["dy"] == pytest.approx(-1, abs=heat["dy"])


def test_acceptance_by_step_is_the_mean_over_chains() -> None:
    chances = torch.rand(7, 30, generator=torch.Generator().manual_seed(0)).double()
    line = charts.acceptance_by_step(chances)["data"][0]
    np.testing.assert_allclose(numbers(line["y"]), chances.mean(0), rtol=1e-6)
    long = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0)).double()
    line = charts.acceptance_by_step(long)["data"][0]
    assert line["dx"] == 4
    np.testing.assert_allclose(numbers(line["y"])[:2], [long[:, :4].mean(), long[:, 4:8].mean()], rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2])
def test_acceptance_by_position_belongs_to_where_a_move_began(width: int) -> None:
    """Chains that jump between -1, where moves are accepted, and 1, where they are not."""
    draws = torch.tensor([-1.0, 1.0]).repeat(30).expand(6, 60)[..., None].expand(6, 60, width)
    chances = torch.tensor([0.0, 1.0]).repeat(30).expand(6, 60)  # of the move that led to a draw
    shown = contents(width, chains=chains(draws.clone(), chances.clone()))
    chart = figures(html(shown))[-2]["data"][0]
    if width == 1:
        places, means = numbers(chart["x"]), numbers(chart["y"])
        means = {round(float(x)): float(mean) for x, mean in zip(places, means, strict=True) if np.isfinite(mean)}
    else:
        z = numbers(chart["z"])
        means = {round(chart["x0"] + k * chart["dx"]): float(z[i, k]) for i, k in np.argwhere(np.isfinite(z))}
    assert means == {-1: 1.0, 1: 0.0}


def test_the_most_different_columns_are_chosen() -> None:
    data, samples = normal(1000, 5), normal(1000, 5, seed=1)
    samples[:, 3] += 2
    samples[:, 1] += 1
    pairs = charts.most_different(data.double(), samples.double())
    assert pairs[0] == (1, 3)
    assert len(pairs) == 3
    page = html(contents(5, data=data, samples={"MALA": samples}))
    assert [one["layout"]["xaxis"]["title"]["text"] for one in figures(page)[:2]] == ["column 1"] * 2
    assert "these are the pairs on which MALA and the data differ most" in page


def test_a_pair_that_differs_only_in_its_dependence_is_found_among_many_columns() -> None:
    data, samples = normal(1000, 60).double(), normal(1000, 60, seed=1).double()
    data[:, 41] = (data[:, 7] + 0.2 * data[:, 41]) / 1.04**0.5  # of the same own law
    assert charts.most_different(data, samples)[0] == (7, 41)


def test_an_axis_shows_the_data_though_samples_ran_away() -> None:
    data = torch.linspace(0, 1, 1001).double()
    low, high = charts.limits(data, torch.tensor([1e30, 0.5, -1e30]).double())
    assert -1.3 < low < 0
    assert 1 < high < 2.3
    low, high = charts.limits(data, data)


def test_images_are_those_of_the_tensors() -> None:
    grey = torch.linspace(-1, 1, 64).reshape(1, 8, 8).repeat(40, 1, 1)
    shown = contents(8, 8, data=grey, samples={"MALA": grey.flip(1)})
    sources = re.findall(r'src="(data:image/png[^"]+)"', html(shown))
    tile = image(sources[0])[9:17, 18:26]
    expected = ((grey[0] + 1) / 2 * 255).round()
    assert np.abs(tile[..., 0] - expected.numpy()).max() <= 1
    assert (tile[..., -1] == 255).all()
    assert (image(sources[0])[8, :, -1] == 0).all()  # between images the page is seen
    np.testing.assert_array_equal(image(sources[1])[:8, :8, 0], tile[::-1, :, 0])
    frames = next(one["frames"] for one in drawings(html(contents(3, 8, 8))) if one["frames"])
    assert len(frames["images"]) == 30
    assert image(frames["images"][7]).shape == (35, 35, 4)


def test_a_large_image_is_averaged_and_channels_that_are_no_colours_too() -> None:
    flat = torch.tensor([0.0, 1.0]).repeat_interleave(32).expand(2, 64, 64)[:, None]
    small = images.shades(flat, (0.0, 1.0))
    assert small.shape == (2, 32, 32, 1)
    assert small[0, 5].flatten().tolist() == [0] * 16 + [255] * 16
    assert images.shades(normal(2, 5, 8, 8), (0.0, 1.0)).shape == (2, 8, 8, 1)
    assert "The mean of their 5 channels is shown." in html(contents(5, 8, 8))

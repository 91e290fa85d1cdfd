"""Contents of reports to test, and readers of the pages that come of them."""

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from scoremh import Chains
from scoremh.report import Contents
from tests.cases import seeded

HOSTILE = "</script><script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
TAGS = "<b>x</b> &lt; %{x} <br> --ink"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def chains(draws: Tensor, probabilities: Tensor | None = None) -> Chains:
    shape = draws.shape[:2]
    counts = torch.zeros(shape, dtype=torch.int64)
    probabilities = torch.rand(shape, generator=seeded(1)) if probabilities is None else probabilities
    return Chains(draws, probabilities, counts, counts, counts)


def contents(*event: int, **changes: Any) -> Contents:
    draws = normal(40, 30, *event, seed=1)
    return replace(
        Contents(
            title="A run",
            about={"data": "data.csv", "seed": "0"},
            columns=[f"column {i}" for i in range(event[0])] if len(event) == 1 else [],
            data=normal(300, *event),
            samples={"MALA": draws[:, -1], "ULA": 2 * normal(50, *event, seed=2)},
            chains=chains(draws),
            histories={
                "score": {
                    "step": [10.0, 20.0, 30.0],
                    "loss": [3.0, 2.0, 1.5],
                    "held_out": [3.0, 2.5, 2.0],
                    "rate": [1.0, 0.5, 0.0],
                }
            },
            metrics={"MALA": {"w1": 0.3, "p_value": None}, "ULA": {"w1": 123.0, "p_value": 0.25}},
            floors={"w1": (0.1, 0.01)},
            warnings=["R-hat 1.2 on column 0: the chains have not mixed."],
        ),
        **changes,
    )


KINDS = {"numbers": (1,), "plane": (2,), "five columns": (5,), "grey images": (8, 8), "colour images": (3, 40, 20)}
CHAIN_CHARTS = {
    1: 1 + 1 + 2 + 2,
    2: 1 + 2 + 2 + 2,
    5: 1 + 3 + 2 + 2,
}  # by columns: over time, traces, mixing, acceptance
CHARTS = {"numbers": 1 + CHAIN_CHARTS[1] + 1, "plane": 4 + 3 + 2 + CHAIN_CHARTS[2] + 1}
CHARTS |= {"five columns": 3 * 4 + 5 + 3 + CHAIN_CHARTS[5] + 1}  # pairs, histograms, correlations; training at the end
CHARTS |= {"grey images": 3, "colour images": 3}  # traces, acceptance, training
PICTURES = {"grey images": 4, "colour images": 4}


def slowly(kind: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.slow)


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def drawings(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="drawings">(.*?)</script>', page, re.DOTALL)
    assert found
    return list(json.loads(found[1], parse_constant=refuse))


def figures(page: str) -> list[dict[str, Any]]:
    return [one["figure"] for one in drawings(page) if one["figure"]]


def numbers(code: dict[str, str]) -> Any:
    x = np.frombuffer(b64decode(code["bdata"]), f"<{code['dtype']}")
    return x.reshape([int(size) for size in code["shape"].split(",")]) if "shape" in code else x


def image(source: str) -> Any:
    """Return the pixels of a PNG, bytes (row, column, RGBA), by a reader that is not ours."""
    png = b64decode(source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA")).astype(int)


def hostile(*event: int) -> Contents:
    shown = contents(*event)
    names = [HOSTILE, IMAGE, TAGS]
    return replace(
        shown,
        title=HOSTILE,
        about={HOSTILE: IMAGE, "path": "/data/\udcff"},
        columns=(2 * names)[: len(shown.columns)],
        samples=dict(zip(names, [*shown.samples.values(), shown.data], strict=True)),
        histories={HOSTILE: {"loss": [2.0, 1.0], IMAGE: [1.0, 2.0], TAGS: [1.0, 3.0]}},
        metrics={HOSTILE: {IMAGE: 0.5}},
        floors={IMAGE: (0.1, 0.1)},
        warnings=[HOSTILE, IMAGE, TAGS],
    )

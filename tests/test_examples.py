"""The examples run: correctors inside other people's samplers, with their real objects."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> Any:
    """Return the module of an example; its library may warn when it is loaded."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


def test_a_corrector_in_sbi() -> None:
    """The posterior is known: after a coarse predictor only the accept step gives its variances."""
    pytest.importorskip("sbi", exc_type=ImportError)
    n = 20_000
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example("sbi_corrector").main(n)
    assert torch.equal(before, torch.random.get_rng_state())
    error = (2 / n) ** 0.5
    judged = {name: max(abs(v - 1) for v in variances) / error for name, variances in found.items()}
    assert judged.pop("Metropolis") < 4
    assert min(judged.values()) > 6, judged


@pytest.mark.slow
def test_a_corrector_in_a_diffusers_pipeline() -> None:
    pytest.importorskip("diffusers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example("diffusers_corrector").main(training_steps=60, images=8, inference_steps=6)
    alone, corrected = found["predictor alone"], found["with a corrector"]
    assert alone.shape == corrected.shape == (8, 8, 8)
    assert bool(corrected.isfinite().all())
    assert not torch.equal(alone, corrected)

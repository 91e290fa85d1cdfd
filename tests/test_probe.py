"""The probe that tells runs apart: equal up to rounding, different by a step size."""

import json
import math

import pytest
import torch

from scoremh._shared.probe import MAX_NUMBERS, Probe


def test_rounding_is_no_difference_and_a_step_size_is_one() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probe = Probe.of(x)
    assert probe.same(Probe.of(x.float()))
    assert probe.same(Probe.of(x * (1 + 5e-4)))
    assert not probe.same(Probe.of(x * 1.01))
    assert not probe.same(Probe.of(x[:49]))
    assert not probe.same(Probe.of(x.roll(1)))


def test_a_coarse_dtype_has_a_coarse_tolerance() -> None:
    x = 1 + torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert Probe.of(x).same(Probe.of(x.bfloat16()))
    assert Probe.of(x.bfloat16()).same(Probe.of(x))
    assert not Probe.of(x.bfloat16()).same(Probe.of(1.2 * x))


def test_what_is_not_finite_counts() -> None:
    x = torch.tensor([1.0, math.nan, math.inf])
    assert Probe.of(x).same(Probe.of(x.clone()))
    assert not Probe.of(x).same(Probe.of(torch.tensor([1.0, 2.0, math.inf])))
    assert not Probe.of(x).same(Probe.of(torch.tensor([1.0, math.nan, -math.inf])))


def test_it_goes_through_json_and_stays_small() -> None:
    probe = Probe.of(torch.rand(10_000), torch.arange(3), torch.tensor([math.nan]))
    assert len(probe.numbers) <= MAX_NUMBERS + 4
    assert Probe.from_json(json.loads(json.dumps(probe.to_json()))).same(probe)


def test_another_run_is_refused_in_the_words_of_its_owner() -> None:
    one, other = Probe.of(torch.ones(3)), Probe.of(torch.zeros(3))
    one.require_same(one, "this run", "another", "Delete it.")
    with pytest.raises(ValueError, match=r"^expected this run, got another\. Delete it\.$"):
        one.require_same(other, "this run", "another", "Delete it.")

"""Targets made from a log density, or from a target and a support."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scoremh import targets
from scoremh.types import Target
from tests.test_targets import CASES, close, seeded


class Quadratic(nn.Module):
    """log N(0, diag(1, 1/4)) up to a constant, with parameters that require gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.precision = nn.Parameter(torch.tensor([1.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.precision * x.square()).sum(1) / 2


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_score_of_a_log_density_keeps_no_graph(mode: Callable[[], Any]) -> None:
    network = Quadratic()
    target = targets.from_log_density(network)
    assert target.score is not None
    with mode():
        x = torch.randn(6, 2, generator=seeded(0))  # an inference tensor in the third mode
        score = target.score(x)
    close(score, -x * torch.tensor([1.0, 4.0]), 1e-6)
    assert not score.requires_grad
    assert network.precision.grad is None


def test_the_score_of_a_log_density_can_be_differentiated() -> None:
    target = targets.from_log_density(Quadratic())
    assert target.score is not None
    x = torch.randn(1, 2, generator=seeded(0))
    expected = torch.diag(torch.tensor([-1.0, -4.0]))
    close(torch.func.jacrev(target.score)(x)[0, :, 0], expected, 1e-6)
    (row,) = torch.autograd.grad(target.score(x.requires_grad_())[0, 1], x)
    close(row[0], expected[1], 1e-6)


def test_the_score_of_a_log_density_keeps_chains_apart() -> None:
    exact = CASES["mixture"].make(torch.float64)
    target = targets.from_log_density(exact.log_density)
    assert target.score is not None
    x = exact.sample(4, generator=seeded(0))
    close(target.score(x), exact.score(x), 1e-10)
    close(target.score(x)[2:3], target.score(x[2:3]), 1e-10)


@pytest.mark.parametrize("wrong", [lambda x: x.sum(), lambda x: x.sum(1, keepdim=True), lambda x: x])
def test_a_log_density_of_the_wrong_shape_is_refused(wrong: Callable[[Tensor], Tensor]) -> None:
    score = targets.from_log_density(wrong).score
    assert score is not None
    with pytest.raises(ValueError, match=r"log_density\(x\) to be a float32 tensor of shape \(3,\)"):
        score(torch.zeros(3, 2))


def test_a_box_includes_its_faces_and_excludes_nan() -> None:
    inside = targets.box([0.0, -1.0], [1.0, float("inf")])
    x = torch.tensor([[0.0, -1.0], [1.0, 1e9], [1.1, 0.0], [0.5, -1.1], [0.5, float("nan")]])
    assert inside(x).tolist() == [True, True, False, False, False]
    assert pickle.loads(pickle.dumps(inside))(x).tolist() == [True, True, False, False, False]


def test_a_box_of_numbers_serves_any_event_in_full_precision() -> None:
    x = torch.full((2, 3, 4), 0.1, dtype=torch.float64)
    x[1, 2, 3] -= 1e-12
    assert targets.box(0.1, 1.0)(x).tolist() == [True, False]


def test_truncation_adds_to_the_support_there_is() -> None:
    target = targets.GeneralizedExtremeValue(0.5)  # from -2 on
    x = torch.tensor([[-3.0], [-1.0], [1.0]])
    once = targets.truncate(target, targets.box(-5.0, 0.0))
    assert isinstance(once, Target)
    assert once.support is not None
    assert once.score is not None
    assert once.log_density is not None
    assert once.support(x).tolist() == [False, True, False]
    close(once.score(x[1:]), target.score(x[1:]), 0)
    close(once.log_density(x[1:]), target.log_density(x[1:]), 0)
    free = targets.truncate(targets.Gaussian([0.0]), targets.box(-5.0, 0.0))
    assert free.support is not None
    assert free.support(x).tolist() == [True, True, False]

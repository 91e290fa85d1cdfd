"""A learned acceptance in files, and its training in checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from scoremh import (
    MALA,
    PCN,
    AcceptanceFit,
    BalanceMatching,
    Learned,
    RandomWalk,
    ScoreFit,
    Target,
    fit_acceptance,
    targets,
)
from scoremh.networks import AcceptanceMLP
from tests.balance_cases import MIXTURE, NETS, SHORT, X, fitted, seeded
from tests.cases import GAUSSIAN, f64


@pytest.mark.parametrize("form", NETS)
def test_a_fit_is_saved_with_its_header(form: Any, tmp_path: Path) -> None:
    fit = fitted(form)
    fit.save(tmp_path / "fit.safetensors")
    again = AcceptanceFit.load(tmp_path / "fit.safetensors")
    points = (X,) if form == "potential" else (X, X.roll(1, 0))
    assert torch.equal(fit.net(*points), again.net(*points))
    if form == "potential":
        assert torch.equal(again.log_density(X), fit.net(X))
    with pytest.raises(ValueError, match=r"that ScoreFit\.save wrote, got .*which AcceptanceFit\.save wrote\. Use Acc"):
        ScoreFit.load(tmp_path / "fit.safetensors")
    assert (again.history, again.recipe, again.net.made_for) == (fit.history, fit.recipe, fit.net.made_for)
    assert repr(again) == repr(fit)
    assert repr(Learned(again)) == repr(Learned(fit))


def test_an_interrupted_training_goes_on_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"

    class StopError(Exception):
        pass

    calls = 0

    class Stopping(AcceptanceMLP):
        def logit(self, proposed: Tensor, current: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 60:
                raise StopError
            return super().logit(proposed, current)

    def attempt(net: nn.Module) -> AcceptanceFit:
        return fitted("free", MALA(0.2), matching=BalanceMatching(1.0, pairs="independent"), net=net, checkpoint=path)

    def network(kind: type[AcceptanceMLP]) -> AcceptanceMLP:
        return kind(2, 128, 2, generator=seeded(5))

    saved = pytest.MonkeyPatch()
    saved.setattr("scoremh.training.SAVE_SECONDS", 0.0)
    Stopping.__name__ = Stopping.__qualname__ = "AcceptanceMLP"
    with pytest.raises(StopError):
        attempt(network(Stopping))
    saved.undo()
    assert path.exists()
    resumed = attempt(network(AcceptanceMLP))
    straight = fitted("free", MALA(0.2), matching=BalanceMatching(1.0, pairs="independent"), net=network(AcceptanceMLP))
    for a, b in zip(resumed.net.parameters(), straight.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.history == straight.history
    another_step = r"to hold this training, with loss = \.\.\..*MALA\(step_size=0\.25\).*, got .*MALA\(step_size=0\.2\)"
    with pytest.raises(ValueError, match=another_step):
        fit_acceptance(
            GAUSSIAN,
            MALA(0.25),
            X,
            form="free",
            matching=BalanceMatching(1.0, pairs="independent"),
            net=network(AcceptanceMLP),
            recipe=SHORT,
            checkpoint=path,
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"proposal": PCN(0.5, mean=f64(0.0, 0.0))}, {"proposal": PCN(0.5, mean=f64(1.0, 1.0))}),
        ({"target": GAUSSIAN}, {"target": MIXTURE}),
        ({"target": Target(GAUSSIAN.score)}, {"target": Target(GAUSSIAN.score, support=targets.box(-9.0, 3.0))}),
    ],
    ids=["proposal", "score", "support"],
)
def test_a_checkpoint_belongs_to_one_problem(first: Any, second: Any, tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"target": GAUSSIAN, "proposal": RandomWalk(1.0), "samples": X, "recipe": SHORT}
    defaults |= {"generator": seeded(), "checkpoint": tmp_path / "file"}
    fit_acceptance(**defaults | first)
    with pytest.raises(ValueError, match="to hold this training"):
        fit_acceptance(**defaults | second | {"generator": seeded()})


class Tied(nn.Module):
    """A network with weights that share their memory, and a buffer that is no floating number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, proposed: Tensor, current: Tensor) -> Tensor:
        log_accept: Tensor = self.second(self.first(torch.cat([proposed, current], 1)).tanh())[:, 0]
        return logsigmoid(log_accept)


def test_any_network_is_saved_and_goes_on(tmp_path: Path) -> None:
    fit = fitted("free", net=Tied(), checkpoint=tmp_path / "checkpoint")
    fit.save(tmp_path / "fit")
    again = AcceptanceFit.load(tmp_path / "fit", net=Tied())
    assert torch.equal(fit.net(X, X.roll(1, 0)), again.net(X, X.roll(1, 0)))
    assert fitted("free", net=Tied(), checkpoint=tmp_path / "checkpoint").history == fit.history

"""Arguments that are refused, and what the errors say."""

import math
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from scoremh import (
    MALA,
    AcceptanceFit,
    BalanceMatching,
    Learned,
    LineIntegral,
    RandomWalk,
    Target,
    diagnostics,
    fit_acceptance,
    fit_score,
    metropolis_hastings,
    sample,
)
from scoremh.networks import AcceptanceMLP, PotentialMLP
from tests.balance_cases import (
    NORMAL,
    SHORT,
    Own,
    X,
    fitted,
    made,
    own,
    seeded,
)
from tests.cases import GAUSSIAN


class Wavy(PotentialMLP):
    """A potential with a closed form of another one's gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[:, 0].sin()


def single() -> AcceptanceFit:
    """Return an acceptance in single precision."""
    return fit_acceptance(NORMAL, RandomWalk(1.0), X.float(), form="free", recipe=SHORT, generator=seeded())


REFUSED: dict[str, tuple[Any, str]] = {
    "negative entropy": (lambda: BalanceMatching(entropy=-1.0), "entropy to be finite and at least 0, got -1.0"),
    "negative scale": (lambda: BalanceMatching(scale=-1.0), "scale to be finite and at least 0, got -1.0"),
    "entropy where no scale is free": (
        lambda: fit_acceptance(GAUSSIAN, MALA(0.1), X, matching=BalanceMatching(entropy=2.0)),
        "entropy and scale with form=\"free\" alone, got BalanceMatching.* with form='potential'",
    ),
    "a score that is not finite": (
        lambda: fit_acceptance(Target(lambda x: x.log()), RandomWalk(1.0), X),
        r"a score that is finite at the samples, got NaN or inf at \d+ of 32, the first at \[",
    ),
    "samples of another dtype": (
        lambda: fit_acceptance(fit_score(X.float(), recipe=SHORT), RandomWalk(1.0), X),
        r"points of the dtype of the network, got another .*x\.float\(\), or the network, with net\.to\(x\.dtype\)",
    ),
    "chains of another dtype": (
        lambda: sample(metropolis_hastings(NORMAL, RandomWalk(1.0), Learned(single())), X[:3], draws=1),
        "points of the dtype of the network, got another",
    ),
    "the log density of a pair": (lambda: fitted().log_density(X), "a potential, got an acceptance of Antis"),
    "a potential of two minds": (
        lambda: fitted("potential", net=Wavy(2)),
        "a value_and_gradient for the forward of Wavy, got that of PotentialMLP. Write it too",
    ),
    "a rule for a network": (
        lambda: diagnostics.balance_residual(LineIntegral(), GAUSSIAN, MALA(0.1), X),
        "a network for an acceptance, got LineIntegral LineIntegral",
    ),
    "a folder for a file": (
        lambda: fitted(checkpoint=Path(__file__).parent),
        "a file, got .*tests, which is a folder",
    ),
    "no file": (lambda: AcceptanceFit.load("nowhere"), "that AcceptanceFit.save wrote, got nowhere, which does not"),
    "clip of 0": (lambda: BalanceMatching(clip=0.0), "clip to be finite and above 0"),
    "alpha beyond 1": (
        lambda: BalanceMatching(alpha=(0.0, 1.5)),
        r"alpha in \[0, 1\], or a tuple of such, got \(0.0, 1.5\)",
    ),
    "no alpha": (lambda: BalanceMatching(alpha=()), r"alpha in \[0, 1\]"),
    "crossed proposals": (lambda: BalanceMatching(all_pairs=True), "all_pairs with independent pairs, got pairs='pro"),
    "no score": (
        lambda: fit_acceptance(Target(log_density=GAUSSIAN.log_density), RandomWalk(1.0), X),
        "a target with a score, got a log density only.*from_log_density",
    ),
    "a network of points for pairs": (
        lambda: fitted("free", net=PotentialMLP(2).double(), standardize=False),
        r"net\(proposed, current\) to take a float64 tensor of shape \(100, 2\), got an error",
    ),
    "a network of another size": (lambda: fitted("free", net=AcceptanceMLP(3)), "check its input size"),
    "a file of another kind": (
        lambda: AcceptanceFit.load(__file__),
        "a file that AcceptanceFit.save wrote, got .*which cannot be read",
    ),
    "too few pairs": (
        lambda: diagnostics.balance_residual(made("free"), GAUSSIAN, RandomWalk(1.0), X[:3]),
        "two pairs, and one for every group, got 3 pairs for 5 groups",
    ),
    "a score of another shape": (
        lambda: fit_acceptance(Target(lambda x: x.sum(1)), RandomWalk(1.0), X),
        r"score\(x\) to be a float64 tensor of shape \(32, 2\) on cpu, got a float64 tensor of shape \(32,\)",
    ),
    "a log q of another shape": (
        lambda: fit_acceptance(GAUSSIAN, Own(lambda to, given: own(to, given)[:, None]), X),
        r"proposal\.log_prob\(x\) to be a float64 tensor of shape \(32,\) on cpu, got .* of shape \(32, 1\)",
    ),
    "one log q for a batch": (
        lambda: fit_acceptance(GAUSSIAN, Own(lambda to, given: own(to, given).mean()), X),
        r"proposal\.log_prob\(x\) to be a float64 tensor of shape \(32,\)",
    ),
    "a support that is none": (
        lambda: fit_acceptance(Target(GAUSSIAN.score, support=lambda x: x[:, 0]), RandomWalk(1.0), X),
        r"support\(x\) to be a bool tensor of shape",
    ),
    "a residual that is not finite": (
        lambda: diagnostics.balance_residual(made("free"), Target(lambda x: x * math.nan), RandomWalk(1.0), X),
        "finite numbers for every pair, got .* that are not, of the score",
    ),
    "a residual without a score": (
        lambda: diagnostics.balance_residual(
            made("free"), Target(log_density=GAUSSIAN.log_density), RandomWalk(1.0), X
        ),
        "a target with a score",
    ),
}


OTHER_ERRORS: dict[str, type[Exception]] = {
    "samples of another dtype": TypeError,
    "chains of another dtype": TypeError,
    "a rule for a network": TypeError,
    "a folder for a file": IsADirectoryError,
    "no file": FileNotFoundError,
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    attempt, text = REFUSED[case]
    with pytest.raises(OTHER_ERRORS.get(case, ValueError), match=text):
        attempt()

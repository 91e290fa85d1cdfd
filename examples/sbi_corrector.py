"""Metropolis-Hastings as the corrector of sbi's score-based posteriors.

`sbi` samples a posterior with a predictor for the reverse diffusion, and accepts any `Corrector` object between its
steps. Its own corrector, "langevin", is unadjusted and evaluates the score at t1, which the sampler sets to the time
before the predictor's step. `MetropolisCorrector` makes moves of the same kind at the time of the samples, and accepts
or rejects them by the score alone.

The posterior is known here: theta ~ N(0, I), x | theta ~ N(theta, diag(.1, .5)^2). The exact score replaces the
network, so that only the errors of predictor and corrector remain; every other object is sbi's own.
"""

import torch
from sbi.inference.potentials.vector_field_potential import VectorFieldBasedPotential
from sbi.neural_nets.estimators.score_estimator import VEScoreEstimator
from sbi.samplers.score.correctors import Corrector
from sbi.samplers.score.diffuser import Diffuser
from sbi.samplers.score.predictors import Predictor
from torch import Tensor, nn

from scoremh import MALA, LineIntegral, Rule, Target, metropolis_hastings, sample

NOISE = torch.tensor([0.1, 0.5])  # standard deviations of the observation
OBSERVED = torch.tensor([[0.8, -0.4]])
VARIANCE = 1 / (1 + NOISE**-2)  # of the posterior
MEAN = VARIANCE * OBSERVED[0] / NOISE**2


class MetropolisCorrector(Corrector):  # type: ignore[misc]
    """Metropolis-Hastings transitions at the noise level that the predictor has reached.

    Args:
        predictor: Predictor of sbi, which holds the score.
        step: Step size of MALA, divided by the sum of the squares of the noise level and of `smallest`.
        steps: Number of transitions.
        smallest: Approximate standard deviation of the posterior in its narrowest direction.
        rule: Acceptance rule.
        generator: Random number generator.
    """

    def __init__(
        self,
        predictor: Predictor,
        step: float = 0.3,
        steps: int = 5,
        smallest: float = 0.0,
        rule: Rule | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(predictor)
        self.step, self.steps, self.smallest, self.generator = step, steps, smallest, generator
        self.rule = LineIntegral() if rule is None else rule
        self.acceptance_rates: list[float] = []

    def correct(self, theta: Tensor, t0: Tensor, t1: Tensor | None = None) -> Tensor:
        """Return the positions after the transitions. The samples are at time t0; t1 is the previous time."""
        event, estimator = theta.shape[1:], self.potential_fn.vector_field_estimator
        variance = float(estimator.std_fn(t0).max()) ** 2 + self.smallest**2

        def score(x: Tensor) -> Tensor:
            gradient: Tensor = self.potential_fn.gradient(x.reshape(-1, *event), t0)
            return gradient.reshape(x.shape)

        kernel = metropolis_hastings(Target(score), MALA(self.step * variance), self.rule)
        chains = sample(kernel, theta.flatten(1), draws=1, thin=self.steps, generator=self.generator)
        self.acceptance_rates.append(chains.acceptance_rate)
        return chains.last.reshape(theta.shape)


class ExactEstimator(VEScoreEstimator):  # type: ignore[misc]
    """sbi's variance-exploding estimator with the exact scores of the posterior instead of a network."""

    def forward(self, input: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        """Return the score of the posterior blurred by the noise of this time."""
        score: Tensor = (MEAN - input) / (VARIANCE + self.std_fn(time) ** 2)
        return score


def diffuser(corrector: str | None = None, **parameters: object) -> Diffuser:
    """Return sbi's sampler with its Euler-Maruyama predictor and, if named, one of its own correctors."""
    estimator = ExactEstimator(
        nn.Identity(), torch.Size([2]), torch.Size([2]), sigma_min=0.02, sigma_max=10.0, std_0=1.0, weight_fn="variance"
    )
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    potential = VectorFieldBasedPotential(estimator, prior, x_o=OBSERVED)
    return Diffuser(potential, "euler_maruyama", corrector, corrector_params=parameters)


def drawn(sampler: Diffuser, n: int, steps: int, seed: int) -> Tensor:
    """Return n posterior draws after `steps` steps of the predictor. sbi uses torch's global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        times = torch.linspace(sampler.t_max, sampler.t_min, steps + 1)
        draws: Tensor = sampler.run(n, times, show_progress_bars=False)
        return draws[:, 0]


def main(n: int = 20_000, steps: int = 10, seed: int = 0) -> dict[str, tuple[float, ...]]:
    """Print and return the ratios of the draws' variances to the true variances, by corrector."""
    with_accept = diffuser()
    with_accept.corrector = MetropolisCorrector(
        with_accept.predictor, 0.8, steps=5, smallest=0.1, generator=torch.Generator().manual_seed(seed)
    )
    samplers = {
        "predictor alone": diffuser(),
        "sbi's Langevin, its default step": diffuser("langevin"),
        "sbi's Langevin, the step of the last level": diffuser("langevin", step_size=0.8 * 0.0104),
        "Metropolis": with_accept,
    }
    true = VARIANCE + 0.02**2
    found = {}
    for name, sampler in samplers.items():
        x = drawn(sampler, n, steps, seed)
        found[name] = tuple(((x - MEAN).square().mean(0) / true).tolist())
        print(f"{name}: variances {found[name][0]:.3f} and {found[name][1]:.3f} times the true ones")
    return found


if __name__ == "__main__":
    main()

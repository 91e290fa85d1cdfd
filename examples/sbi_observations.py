"""The posterior of many observations from sbi's NPSE, with a uniform prior and its hard bounds.

NPSE learns the scores of p(theta | x) for single observations x. The posterior of n of them is proportional to
p(theta)^(1 - n) prod_i p(theta | x_i): a product of n models of one network and the prior, from which `smc` draws with
Metropolis-Hastings steps at every noise level. A uniform prior is constant within its bounds and 0 outside, which all
draws respect. Learned scores are smooth at a bound, and the errors of n of them add up: near a bound, expect a bias.

The posterior is known here: theta ~ U(-1, 1)^2, x | theta ~ N(theta, diag(.5, .2)^2), so that it is a truncated normal
distribution.
"""

import math
import tempfile

import torch
from sbi.inference import NPSE
from sbi.neural_nets.estimators.score_estimator import VEScoreEstimator
from sbi.utils import BoxUniform
from sbi.utils.tracking import TensorBoardTracker
from scipy import stats
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from scoremh import Target, diffusion, smc, targets
from scoremh.annealing import Particles

BOUND, LOWEST = 1.0, 0.05  # of the prior; noise level at which the posterior is read
NOISE = torch.tensor([0.5, 0.2])
TRUE = torch.tensor([0.3, -0.3])


def learned(simulations: int, epochs: int, seed: int) -> VEScoreEstimator:
    """Return the estimator that NPSE learns. sbi uses torch's global generator."""
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as logs, SummaryWriter(logs) as writer:
        torch.manual_seed(seed)
        prior = BoxUniform(-BOUND * torch.ones(2), BOUND * torch.ones(2))
        theta = prior.sample((simulations,))
        tracker = TensorBoardTracker(writer)
        trainer = NPSE(prior, sde_type="ve", tracker=tracker, show_progress_bars=False)
        trainer.append_simulations(theta, theta + NOISE * torch.randn_like(theta))
        return trainer.train(max_num_epochs=epochs, learning_rate=2e-3)


def models(estimator: VEScoreEstimator, observations: Tensor) -> list[diffusion.DiffusionModel]:
    """Return p(theta | x_i) as diffusion models of one network, which `smc` evaluates in one call."""
    low, high = estimator.sigma_min, estimator.sigma_max

    def score(theta: Tensor, sigma: Tensor, x: Tensor) -> Tensor:
        time = (sigma / low).log() / math.log(high / low)  # of a variance-exploding diffusion
        found: Tensor = estimator.score(theta, x, time.to(theta))
        return found

    net = diffusion.Conditional(score, observations[:1])
    first = diffusion.from_score(net, [max(low, LOWEST), high], by="sigma", variance=0.1, like=(2,))
    return [first.given(x) for x in observations]


def posterior(estimator: VEScoreEstimator, observations: Tensor, particles: int, seed: int) -> Particles:
    """Return particles of the posterior of all observations."""
    bounds = targets.box([-BOUND, -BOUND], [BOUND, BOUND])
    prior = Target(torch.zeros_like, lambda theta: theta.new_zeros(len(theta)), bounds)
    n = len(observations)
    product = targets.product(*models(estimator, observations), prior, weights=[1.0] * n + [1.0 - n])
    return smc(product, particles=particles, generator=torch.Generator().manual_seed(seed))


def main(simulations: int = 10_000, epochs: int = 100, n: int = 5, particles: int = 1000, seed: int = 0) -> Tensor:
    """Print and return mean and standard deviation of every coordinate beside the true ones, `(coordinate, 4)`."""
    g = torch.Generator().manual_seed(seed)
    observations = TRUE + NOISE * torch.randn(n, 2, generator=g)
    draws = posterior(learned(simulations, epochs, seed), observations, particles, seed).draws
    rows = []
    for x, centre, std in zip(draws.T, observations.mean(0), NOISE / n**0.5, strict=True):
        ends = [float((end - centre) / std) for end in (-BOUND, BOUND)]
        true = stats.truncnorm(*ends, loc=float(centre), scale=float(std))
        rows.append([float(x.mean()), true.mean(), float(x.std()), true.std()])
        print("mean {:.3f}, true {:.3f}; standard deviation {:.3f}, true {:.3f}".format(*rows[-1]))
    assert bool((draws.abs() <= BOUND).all())
    return torch.tensor(rows)


if __name__ == "__main__":
    main()

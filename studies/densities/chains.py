"""Chains of a learned score at its own level from noise: what an acceptance rule makes of the weights of modes."""

from pathlib import Path

import torch
from torch import Tensor

from scoremh import PCN, LineIntegral, ThroughNoise, metrics, metropolis_hastings, sample
from scoremh.acceptance import Rule
from scoremh.coordinates import Affine
from studies.densities.distributions import DISTRIBUTIONS
from studies.densities.fits import Config, Fit, blur
from studies.framework import Cell, Record
from studies.learning import seeded

SHORT = 0.5  # length of a move, in units of the samples' spread, below which the score is integrated
BETAS = (0.3, 1.0)  # of pCN: moves of which nearly all are short, and draws of its reference, of which few are
RULES: dict[str, Rule] = {
    "integral": LineIntegral("simpson"),
    "through noise": ThroughNoise(),
    "both": ThroughNoise(integrate_below=SHORT),
}
CHAINED = ("figure 1", "moons")


class Chains(Cell, kind="chains"):
    """The last draws of chains from noise by one rule."""

    distribution: str
    rule: str
    beta: float
    seed: int

    def measure(self, config: Config, folder: Path) -> Record:
        known, fit = DISTRIBUTIONS[self.distribution][1], Fit(self.distribution, self.seed).load(folder)
        n, steps = config.chains, config.chain_steps
        assert isinstance(fit.coordinates, Affine)
        proposal = PCN(self.beta, mean=fit.coordinates.mean, covariance=fit.covariance)
        start = fit.coordinates(torch.randn(n, 2, generator=seeded(13, self.seed)))
        start = start.clamp(fit.support.low, fit.support.high)
        kernel = metropolis_hastings(fit, proposal, RULES[self.rule])
        chains = sample(kernel, start, draws=1, thin=steps, generator=seeded(14, self.seed))
        noise: Tensor = torch.linalg.cholesky(blur(fit)).float()

        def blurred(use: int) -> Tensor:
            z = torch.randn(n, 2, generator=seeded(use + 1, self.seed))
            return known.sample(n, generator=seeded(use, self.seed)) + z @ noise.T

        shares, true = (known.components(x, blur(fit)).softmax(1).mean(0) for x in (chains.last, blurred(15)))
        found = {"weight": float(shares[0]), "true_weight": float(true[0]), "w1": metrics.w1(chains.last, blurred(15))}
        return found | {"floor": metrics.w1(blurred(17), blurred(15)), "acceptance": chains.acceptance_rate}

r"""Proposals q(x' | x): random walks, Langevin (MALA), preconditioned Crank-Nicolson and Barker's skewed walk.

All but the last two are Gaussian: `x' = mean(x) + std L z` with `z ~ N(0, I)` and `L L^T = C`, an optional covariance
that fits the proposal to the target's shape. With v = x' - x:

| proposal | mean(x) | std | log q(x \| x') - log q(x' \| x) |
|---|---|---|---|
| `RandomWalk` | x | std | 0 |
| `MALA` | x + h C s(x) | sqrt(2h) | -(s + s').v / 2 - (h / 4) (s' - s).C(s' + s) |
| `ScaledMALA` | x + h(x) C s(x) | sqrt(2h(x)) | -(s + s').v / 2 + (1 / h - 1 / h') v.C^-1 v / 4 - (d / 2) log(h' / h) |
| `PCN` | m + sqrt(1 - beta^2) (x - m) | beta scale | v.C^-1 (x + x' - 2m) / (2 scale^2) |
| `StudentWalk` | x | scale, with Student's t in place of z | 0 |
| `Barker` | skewed by the score | sqrt(2h) | sum_i log sigmoid(-w_i g_i') - log sigmoid(w_i g_i), v = L w, g = L^T s |

A Gaussian one defines mean and standard deviation once, in `moments`; `sample` and `log_prob` both derive from it. A
covariance is a tensor over the flattened event: `(d,)` is a diagonal, `(d, d)` a matrix.
"""

from scoremh.proposals.langevin import MALA, Barker, ScaledMALA
from scoremh.proposals.noise import GaussianProposal, Preconditioned
from scoremh.proposals.walks import PCN, RandomWalk, StudentWalk

__all__ = ["MALA", "PCN", "Barker", "GaussianProposal", "Preconditioned", "RandomWalk", "ScaledMALA", "StudentWalk"]

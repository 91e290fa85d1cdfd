"""How an estimator runs chains, and the pool it runs them on: clones share it, files and pickles cannot hold it."""

import copy
from pathlib import Path
from typing import Any

import torch

from scoremh.sampler import Sampler
from scoremh.sampling import Chains
from scoremh.sampling.pools import Pool


class ChainRunsMixin:
    """An estimator with a sampler and a pool."""

    annealing_steps: int
    chain_steps: int
    verbose: bool
    pool: Pool
    sampler_: Sampler

    def _run(self, n: int, draws: int, generator: torch.Generator, store: str | Path | None = None) -> Chains:
        """Return chains from noise to the points of the table."""
        return self.sampler_.sample(
            n,
            annealing_steps=int(self.annealing_steps),
            chain_steps=int(self.chain_steps),
            draws=draws,
            generator=generator,
            progress=self.verbose,
            store=store,
            pool=self.pool,
        )

    def __sklearn_clone__(self) -> "ChainRunsMixin":
        """Return a copy that is not fitted, with the same pool: most pools cannot be copied."""
        bare = copy.copy(self)
        bare.pool = None
        found: ChainRunsMixin = super(ChainRunsMixin, bare).__sklearn_clone__()  # type: ignore[misc]  # of BaseEstimator
        found.pool = self.pool
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled."""
        return {**super().__getstate__(), "pool": lasting_pool(self.pool)}  # type: ignore[dict-item]


def lasting_pool(pool: Pool) -> int | None:
    """Return what of a pool outlives this process: a number of processes."""
    return pool if isinstance(pool, int) else None

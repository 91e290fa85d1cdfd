"""What every distribution has: score, normalised log density, sampler and support.

score(x) = grad log p(x)
"""

import math
from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Generator, Tensor

from scoremh._shared import checks
from scoremh._shared.support import require_event
from scoremh.types import SupportFn

LOG_2PI = math.log(2 * math.pi)


class Distribution(ABC):
    """A distribution; a subclass sets `_event` and implements the three formulas."""

    _event: tuple[int, ...]

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return grad log p(x)."""
        require_event(x, self._event)
        return self._score(x)

    def log_density(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return log p(x), normalised."""
        require_event(x, self._event)
        return self._log_density(x)

    def sample(self, n: int, *, generator: Generator | None = None) -> Float[Tensor, "draw *event"]:
        """Draw n independent events."""
        checks.count(n, "n")
        return self._sample(n, generator)

    @property
    def support(self) -> SupportFn | None:
        """None: p is positive everywhere, unless a subclass says otherwise."""
        return None

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor: ...
    @abstractmethod
    def _log_density(self, x: Tensor) -> Tensor: ...
    @abstractmethod
    def _sample(self, n: int, generator: Generator | None) -> Tensor: ...

    def __repr__(self) -> str:
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        long = {name for name, value in public.items() if isinstance(value, Tensor) and value.numel() > 16}
        shown = (f"{k}={checks.describe(v) if k in long else ' '.join(repr(v).split())}" for k, v in public.items())
        return f"{type(self).__name__}({', '.join(shown)})"

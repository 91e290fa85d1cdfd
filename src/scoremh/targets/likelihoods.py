r"""Likelihoods, and how they reach from the data to a high noise level.

A posterior at noise level sigma is p_sigma(x) L_sigma(x), where p_sigma is the prior blurred by noise of covariance
sigma^2 C. L_0 is the likelihood. A *bridge* is a likelihood that takes the noise level: the noisier x, the flatter
L_sigma. Any bridge gives the right posterior at the end; a good one leads the particles of `smc` there.

| likelihood | bridge |
|---|---|
| `linear_observation(A, y, std)` | L_sigma(x) = N(y; A x, S + sigma^2 A C A^T), S = std^2 |
| a function of x and the noise level | the function itself |
| a function of x, or a target | none: `smc` raises it to powers that grow with the effective sample size |

With W = S^-1/2 A and the eigenvalues l and eigenvectors U of W C W^T, the linear one is a sum over independent numbers

    log L_sigma(x) = -1/2 sum_j [(r_j - (R x)_j)^2 / (1 + sigma^2 l_j) + log(1 + sigma^2 l_j) + log 2 pi] - log |S| / 2

where R = U^T W and r = U^T S^-1/2 y.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scoremh._shared import checks
from scoremh._shared.checks import Values
from scoremh.coordinates import Affine, Coordinates
from scoremh.types import LogDensityFn, TargetLike

LOG_2PI = math.log(2 * math.pi)
MAX_ADJOINT_ERROR = 1e-3  # relative, between <A x, y> and <x, A^T y>: float32 convolutions are off by 1e-5


class Likelihood(ABC):
    """The likelihood of some data, a target that knows what noise does to it."""

    support: ClassVar[None] = None
    is_bridge: ClassVar[bool] = False

    @abstractmethod
    def log_density(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, " chain"]:
        """Return the log likelihood."""

    @abstractmethod
    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return its gradient."""

    def at(self, noise_level: float, coordinates: Coordinates) -> "Likelihood":
        """Return the likelihood of x blurred by noise of this level; the likelihood itself if it is no bridge.

        Args:
            noise_level: sigma of the noise sigma z in coordinates u.
            coordinates: The map from u to x, that of the prior.
        """
        return self

    def precision(self, size: int) -> Tensor | None:
        """Return minus the second derivative of the log likelihood, `(size, size)`, if it is constant."""
        return None


@dataclass(frozen=True, eq=False)
class KnownLikelihood(Likelihood):
    """The likelihood of a target with a log density and a score.

    Args:
        target: Target; its support plays no part here.
    """

    target: TargetLike

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log density of the target."""
        assert self.target.log_density is not None
        value = self.target.log_density(x)
        checks.returned(value, x, x.shape[:1], "log_likelihood")
        return value

    def score(self, x: Tensor) -> Tensor:
        """Return the score of the target."""
        assert self.target.score is not None
        return self.target.score(x)


def gradient_of(log_density: LogDensityFn, x: Tensor) -> Tensor:
    """Return the gradient of a log density by automatic differentiation; no graph is kept unless x has one."""

    def total(x: Tensor) -> Tensor:
        return log_density(x).sum()  # no chain enters the term of another: the gradient of the sum is that of each

    with torch.set_grad_enabled(x.requires_grad and torch.is_grad_enabled()):
        gradient: Tensor = torch.func.grad(total)(x)
    return gradient


@dataclass(frozen=True, eq=False)
class LogLikelihood(Likelihood):
    """A log likelihood given as a function; its score is by automatic differentiation.

    Args:
        function: Function of x, or of x and the noise level, that returns one number per chain.
        noise_level: Noise level that it is called with.
    """

    function: Callable[..., Tensor]
    noise_level: float = 0.0

    @cached_property
    def is_bridge(self) -> bool:  # type: ignore[override]
        """Whether the function takes the noise level."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # of a built-in function
            return False
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len([p for p in positional if p.default is p.empty]) == 2

    def log_density(self, x: Tensor) -> Tensor:
        """Return the value of the function."""
        value = self.function(x, self.noise_level) if self.is_bridge else self.function(x)
        checks.returned(value, x, x.shape[:1], "log_likelihood")
        return value

    def score(self, x: Tensor) -> Tensor:
        """Return the gradient of the function."""
        return gradient_of(self.log_density, x)

    def at(self, noise_level: float, coordinates: Coordinates) -> "LogLikelihood":
        """Return the function at a noise level."""
        return replace(self, noise_level=noise_level) if self.is_bridge else self


class Rotated(NamedTuple):
    """A linear observation in coordinates in which the noise of the observation and of x are independent."""

    rows: Tensor
    """R, `(observation, d)`; of a mask, the factor of every coordinate that is observed, `(observation,)`."""
    data: Tensor
    """r."""
    values: Tensor
    """l."""


@dataclass(frozen=True, eq=False)
class LinearObservation(Likelihood):
    """The likelihood of y = A x + noise, made by `linear_observation`.

    Args:
        matrix: S^-1/2 A over the flattened event, `(observation, d)`; None for a mask.
        observed: S^-1/2 y, `(observation,)`.
        log_volume: log |S| / 2.
        index: Numbers of the observed coordinates, `(observation,)`; None unless A is a mask.
        scale: Diagonal of S^-1/2; None unless A is a mask.
        noise_level: sigma of the noise that x carries.
        noise_covariance: C of that noise, a number, `(d,)` or `(d, d)`.
        rotated: R, r and l, which all noise levels share; computed from the others if None.
    """

    is_bridge: ClassVar[bool] = True

    matrix: Tensor | None
    observed: Tensor
    log_volume: float
    index: Tensor | None = None
    scale: Tensor | None = None
    noise_level: float = 0.0
    noise_covariance: Tensor = field(default_factory=lambda: torch.ones(()))
    rotated: Rotated | None = field(default=None, repr=False)

    @cached_property
    def _rotated(self) -> Rotated:
        """R, r and l."""
        if self.rotated is not None:
            return self.rotated
        with torch.inference_mode(False):  # kept for later calls, which may differentiate
            return self._rotate()

    def _rotate(self) -> Rotated:
        covariance = self.noise_covariance.double()
        if self.index is not None and covariance.ndim < 2:
            assert self.scale is not None
            own = covariance if covariance.ndim == 0 else covariance[self.index]
            return Rotated(self.scale, self.observed, (self.scale.square() * own).expand(len(self.scale)))
        matrix = self._dense
        spread = matrix @ covariance if covariance.ndim == 2 else matrix * covariance
        values, vectors = torch.linalg.eigh(spread @ matrix.mT)
        return Rotated(vectors.mT @ matrix, vectors.mT @ self.observed, values.clamp(min=0))

    @property
    def _dense(self) -> Tensor:
        """S^-1/2 A as a matrix; of a mask, one with a row for every observed coordinate."""
        if self.matrix is not None:
            return self.matrix
        assert self.index is not None
        assert self.scale is not None
        size = len(self.noise_covariance)  # only a matrix C needs it
        rows = torch.zeros(len(self.index), size, dtype=torch.float64, device=self.observed.device)
        rows[torch.arange(len(self.index)), self.index] = self.scale
        return rows

    def _require_event(self, x: Tensor) -> None:
        """Raise an error if A does not observe such events."""
        size = x[0].numel()
        if self.matrix is not None and size != self.matrix.shape[1]:
            expected = f"x with {self.matrix.shape[1]} coordinates, as many as A has columns"
            raise ValueError(checks.message(expected, checks.describe(x), "Correct A, or the prior."))
        if self.index is not None and size <= int(self.index.max()):
            expected = f"x with at least {int(self.index.max()) + 1} coordinates, as the mask has"
            raise ValueError(checks.message(expected, checks.describe(x), "Pass a mask of the event's shape."))

    def _misfit(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r - R x, `(chain, observation)`, the variances 1 + sigma^2 l, and R."""
        self._require_event(x)
        rows, data, values = (part.to(x) for part in self._rotated)
        flat = x.flatten(1)
        seen = flat[:, self.index] * rows if rows.ndim == 1 else flat @ rows.mT
        return data - seen, 1 + self.noise_level**2 * values, rows

    def log_density(self, x: Tensor) -> Tensor:
        """Return log N(y; A x, S + sigma^2 A C A^T)."""
        misfit, variances, _ = self._misfit(x)
        constant = self.log_volume + float((variances.double().log() + LOG_2PI).sum()) / 2
        return -(misfit.square() / variances).sum(1) / 2 - constant

    def score(self, x: Tensor) -> Tensor:
        """Return R^T (r - R x) / (1 + sigma^2 l)."""
        misfit, variances, rows = self._misfit(x)
        pull = misfit / variances
        if rows.ndim == 2:
            return (pull @ rows).reshape(x.shape)
        assert self.index is not None
        return torch.zeros_like(x.flatten(1)).index_copy_(1, self.index, pull * rows).reshape(x.shape)

    def at(self, noise_level: float, coordinates: Coordinates) -> Likelihood:
        """Return N(y; A x, S + sigma^2 A C A^T), with C the covariance of noise of level 1 in affine coordinates."""
        if not isinstance(coordinates, Affine):  # noise of another shape: `smc` raises this likelihood to powers
            return KnownLikelihood(self)
        covariance = coordinates.covariance
        if covariance.shape == self.noise_covariance.shape and bool((covariance == self.noise_covariance).all()):
            return replace(self, noise_level=noise_level, rotated=self._rotated)
        return replace(self, noise_level=noise_level, noise_covariance=covariance, rotated=None)

    def precision(self, size: int) -> Tensor:
        """Return R^T R / (1 + sigma^2 l)."""
        rows, _, values = self._rotated
        variances = 1 + self.noise_level**2 * values
        if rows.ndim == 2:
            return rows.mT @ (rows / variances[:, None])
        assert self.index is not None
        diagonal = torch.zeros(size, dtype=torch.float64, device=rows.device)
        return diagonal.index_copy_(0, self.index, rows.square() / variances).diag()


def linear_observation(
    A: Tensor | Sequence[Sequence[float]] | Callable[[Tensor], Tensor],  # noqa: N803 (the name of the field)
    y: Values,
    std: Values,
    *,
    adjoint: Callable[[Tensor], Tensor] | None = None,
) -> LinearObservation:
    """Return the likelihood of y = A x + noise, for `posterior`, with its bridge to every noise level in closed form.

    Args:
        A: Matrix over the flattened event, `(observation, d)`; a mask, a bool tensor of the event's shape that is True
            where x is observed; or a linear function from `(n, *event)` to `(n, *observation)`, such as a blur.
        y: Observation: `(observation,)`, of a mask the values where it is True, of a function `(*observation)`.
        std: Standard deviation of the noise, a number or one for every entry of y.
        adjoint: Function A^T from `(n, *observation)` to `(n, *event)`; needed if A is a function.

    Example:
        >>> import torch
        >>> from scoremh import targets
        >>> prior = targets.Gaussian([0.0, 0.0])
        >>> posterior = targets.posterior(prior, targets.linear_observation([[1.0, 0.0]], [1.0], std=1.0))
        >>> posterior.score(torch.tensor([[0.5, 0.0]]))  # the mean
        tensor([[0., 0.]])
    """
    observed = torch.as_tensor(y, dtype=torch.float64).detach()
    observed = observed if observed.ndim else observed[None]
    mask = isinstance(A, Tensor) and A.dtype == torch.bool
    if callable(A) and not isinstance(A, Tensor):
        matrix: Tensor | None = _matrix_of(A, adjoint, observed)
    elif mask:
        matrix = None
        if observed.shape == A.shape and not bool(A.all()):  # type: ignore[union-attr]
            observed = observed[A]  # type: ignore[index]
    else:
        matrix = torch.as_tensor(A, dtype=torch.float64).detach()
        if matrix.ndim != 2:
            fix = "Pass a matrix (observation, d), a bool mask of the event's shape, or a function with its adjoint."
            raise ValueError(checks.message("A of shape (observation, d)", checks.describe(matrix), fix))
    index = A.flatten().nonzero()[:, 0] if mask else None  # type: ignore[union-attr]
    flat = observed.flatten()
    rows = len(index) if index is not None else len(matrix)  # type: ignore[arg-type]
    if rows != len(flat):
        fix = "Pass one number for every row of A, or for every coordinate where a mask is True."
        raise ValueError(checks.message(f"y with {rows} numbers, as many as A observes", len(flat), fix))
    if not bool(flat.isfinite().all()) or (matrix is not None and not bool(matrix.isfinite().all())):
        raise ValueError(checks.message("A and y to be finite", "NaN or inf", "Leave out what was not observed."))
    deviations = torch.as_tensor(std, dtype=torch.float64).detach().flatten().to(flat.device)
    if not bool((deviations > 0).all() and deviations.isfinite().all()) or len(deviations) not in (1, rows):
        fix = "Pass a number, or one for every entry of y."
        raise ValueError(checks.message("std above 0", checks.short(deviations.tolist()), fix))
    deviations = deviations.expand(rows)
    return LinearObservation(
        matrix=None if matrix is None else matrix / deviations[:, None],
        observed=flat / deviations,
        log_volume=float(deviations.log().sum()),
        index=index,
        scale=1 / deviations if mask else None,
    )


def _matrix_of(
    function: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor] | None, observed: Tensor
) -> Tensor:
    """Return the matrix of a linear function: its adjoint of every unit vector is a row."""
    if adjoint is None:
        fix = "Pass adjoint=, the transposed function; of a symmetric blur it is the blur itself."
        raise ValueError(checks.message("the adjoint of a function A", "none", fix))
    size, like = observed.numel(), observed.to(torch.get_default_dtype())
    units = torch.eye(size, dtype=like.dtype, device=like.device).reshape(size, *observed.shape)
    rows = adjoint(units)
    if not isinstance(rows, Tensor) or len(rows) != size:
        fix = "It maps (n, *observation) to (n, *event)."
        raise ValueError(checks.message(f"adjoint to return {size} events", checks.describe(rows), fix))
    x = torch.randn(1, *rows.shape[1:], generator=torch.Generator().manual_seed(0)).to(rows)
    seen, expected = function(x).flatten(), rows.flatten(1) @ x.flatten()
    if seen.shape != expected.shape or float((seen - expected).norm()) > MAX_ADJOINT_ERROR * float(expected.norm()):
        got = "functions with <A x, y> other than <x, A^T y>"
        fix = "A is linear, without a constant; the adjoint of a convolution flips its kernel."
        raise ValueError(checks.message("A and its adjoint", got, fix))
    return rows.flatten(1).double()

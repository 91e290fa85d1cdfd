"""A diffusion model as the scores of all noise levels."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scoremh._shared import checks
from scoremh._shared.algebra import per_chain
from scoremh.coordinates import Affine
from scoremh.diffusion.divergence import level_score, random_directions
from scoremh.diffusion.predictions import Prediction
from scoremh.diffusion.through_noise import LogDensity
from scoremh.diffusion.times import Time, Timesteps
from scoremh.diffusion.wrapping import Reading, check_wrapping
from scoremh.types import LogDensityFn, Target

Network = Callable[[Tensor, Tensor], object]
ROUNDING = 1e-6  # relative: schedules of noise levels are rounded


@dataclass(frozen=True, eq=False, repr=False)
class DiffusionModel:
    """Scores of a distribution at all noise levels, in coordinates x = x0 + sigma z, whatever the network predicts.

    `model.at(sigma)` is the target at one level, for `anneal`, `annealing.flow` and kernels; the model itself is the
    target at `noise_level`. Made by `from_epsilon` and the other adapters of `scoremh.diffusion`.

    Args:
        net: Network called as `net(input, time)`, with one time per chain; it returns a tensor, or what has one as
            `.sample`.
        prediction: What the network predicts.
        time: Function from sigma to what the network is told of it.
        noise_range: Lowest and highest noise level that the network knows.
        noise_level: Noise level at which the model itself is read.
        continuous_time: Whether the network takes times between two timesteps; if not, its answers at both are mixed.
        variance: Variance of the data, a mean over their coordinates.
        mean: Mean of the data, a number or a tensor of the event's shape; `log_density` needs it.
        max_rows: Most rows in one call of the network, to bound its memory; all at once when None.
        probes: Number of random directions of an estimated divergence (Hutchinson); exact when None.
        origin: Point of the data's coordinates that is 0 in those of the model.
        event: An event of the data's shape, in the dtype and on the device in which to start chains; None where only
            the points that come will tell.
        unchecked: Not empty until the wrapping has been checked, with the first points that come.
    """

    net: Network
    prediction: Prediction
    time: Time
    noise_range: tuple[float, float]
    noise_level: float
    continuous_time: bool = True
    variance: float = 1.0
    mean: Tensor | float = 0.0
    max_rows: int | None = None
    probes: int | None = None
    origin: Tensor | float = 0.0
    event: Tensor | None = None
    unchecked: list[bool] = field(default_factory=lambda: [True])

    support: ClassVar[None] = None
    density_is_estimated: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse bad parameters."""
        low, high = self.noise_range
        checks.positive(low, "the lowest noise level")
        checks.positive(high, "the highest noise level")
        if low >= high:
            raise ValueError(checks.message("a noise range that rises", self.noise_range, "Swap its ends."))
        checks.positive(self.variance, "variance")
        for name in ("max_rows", "probes"):
            if (number := getattr(self, name)) is not None:
                checks.count(number, name)
        self._require(self.noise_level)

    @property
    def levels(self) -> tuple[float, ...] | None:
        """Noise levels at which a network of discrete time was trained, by timestep; None for continuous time."""
        return self.time.levels if isinstance(self.time, Timesteps) else None

    @property
    def coordinates(self) -> Affine:
        """The shift by the mean of the data."""
        return Affine(torch.as_tensor(self.mean), torch.ones(()))

    @property
    def standard(self) -> "DiffusionModel":
        """The same model in coordinates in which the data have mean 0."""
        return replace(self, mean=0.0, origin=self.origin + self.mean)

    @property
    def log_density(self) -> LogDensityFn:
        """The function x -> log p(x) at the model's noise level, normalised, through noise."""
        return LogDensity(self)

    def at(self, noise_level: float) -> Target:
        """Return the data blurred by noise of this level, as a target.

        Args:
            noise_level: sigma of x = x0 + sigma z.
        """
        self._require(noise_level)
        model = replace(self, noise_level=noise_level)
        return Target(model.score, levels=model)

    def score(self, x: Float[Tensor, "chain *event"]) -> Float[Tensor, "chain *event"]:
        """Return the score at the model's noise level."""
        self._check_once(x)
        return self._score(x, self.noise_level)

    def level_score(
        self, x: Float[Tensor, "chain *event"], sigma: Tensor | float
    ) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
        """Return the score at a noise level and its divergence, exact or estimated along `probes` directions.

        Args:
            x: Points.
            sigma: Noise level, a number or one per chain.
        """
        self._check_once(x)
        size = x[0].numel()
        directions = None if self.probes is None else random_directions(size, x, self.probes)
        rows = len(x) if self.max_rows is None else max(1, self.max_rows // (self.probes or size))
        level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        with sdpa_kernel(SDPBackend.MATH):  # the faster kernels of attention have no forward mode
            parts = [
                _level_score(self._score, part, its_level, directions)
                for part, its_level in zip(x.split(rows), level.split(rows), strict=True)
            ]
        scores, divergences = zip(*parts, strict=True)
        return torch.cat(scores), torch.cat(divergences)

    def check(self, like: Tensor | Sequence[int]) -> str | None:
        """Return what is wrong with the wrapping of the network, and warn of it; None where nothing is.

        The score of noise must be that of noise: at the highest level near -x / (variance + sigma^2), and D, the
        denoiser that it implies, must follow x as a denoiser does. With samples, D must also come as near to them as
        the best linear denoiser; where the network answers nearly 0, as the best that samples alone can give.

        Args:
            like: Shape of an event, or some samples of the data, `(sample, *event)`: the better check.
        """
        return self._check(event_like(like, self.net), like if isinstance(like, Tensor) else None)

    def _check(self, event: Tensor, samples: Tensor | None = None) -> str | None:
        """Check the wrapping on events of the shape, dtype and device of this one."""
        self.unchecked.clear()
        return check_wrapping(
            self._read,
            Reading(self.prediction, self.time),
            noise_range=self.noise_range,
            variance=self.variance,
            like=event,
            samples=samples,
            other_times=self.continuous_time,
        )

    def _check_once(self, x: Tensor) -> None:
        """Check the wrapping when the first points come."""
        if self.unchecked:
            self._check(x[0])

    def _score(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        return self._read(Reading(self.prediction, self.time), x + _to(self.origin, x), sigma)

    def _read(self, reading: Reading, x: Tensor, sigma: Tensor | float) -> Tensor:
        """Return the score at levels sigma, a number or one per chain, in calls of at most `max_rows` rows."""
        level = torch.as_tensor(sigma, dtype=_wide(x), device=x.device).expand(len(x))
        rows = self.max_rows or len(x)
        parts = []
        for part, its_level in zip(x.split(rows), level.split(rows), strict=True):
            factors = reading.prediction.factors(its_level)
            scale, skip, gain = (per_chain(factor, part).to(x.dtype) for factor in factors)
            answer = self._answer(part * scale, reading.time(its_level))
            parts.append(skip * part + gain * answer)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _answer(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the network's output; between timesteps, where it knows only those, a mixture of two outputs."""
        if self.continuous_time:
            return _output(self.net, x, time)
        before = time.floor()
        first = _output(self.net, x, before.long())
        if bool((time == before).all()):
            return first
        return torch.lerp(first, _output(self.net, x, time.ceil().long()), per_chain(time - before, x).to(x.dtype))

    def _require(self, noise_level: float) -> None:
        """Refuse a noise level that the network does not know."""
        low, high = self.noise_range
        if not low * (1 - ROUNDING) <= noise_level <= high * (1 + ROUNDING):
            fix = "Choose a level within the range that the network was trained on."
            raise ValueError(checks.message(f"a noise level from {low:g} to {high:g}", noise_level, fix))

    def __repr__(self) -> str:
        """Show what the network predicts, its noise levels, and what happens between them."""
        low, high = self.noise_range
        text = f"diffusion model by {self.prediction.name}, noise levels {low:.3g} to {high:.3g}"
        if self.levels is not None:
            between = "the time is interpolated" if self.continuous_time else "outputs are interpolated"
            text += f" in {len(self.levels)} timesteps (between two of them {between} in log sigma)"
        return f"{text}, read at {self.noise_level:.3g}"


def event_like(like: Tensor | Sequence[int], net: Network) -> Tensor:
    """Return an event of the shape of samples, or of this shape in the dtype and on the device of a network.

    Args:
        like: Samples of the data, `(sample, *event)`, or the shape of an event.
        net: Network or function.
    """
    if isinstance(like, Tensor):
        checks.events(like, "like")
        return like[0]
    own = next(_tensors_of(net), torch.empty(()))
    return torch.zeros(tuple(like), dtype=_wide(own), device=own.device)


def _wide(x: Tensor) -> torch.dtype:
    """Return a dtype in which a noise level keeps its digits: that of x, or float32 where x has fewer."""
    return torch.promote_types(x.dtype, torch.float32)


def _to(value: Tensor | float, x: Tensor) -> Tensor | float:
    return value.to(x) if isinstance(value, Tensor) else value


def _tensors_of(net: object) -> Iterator[Tensor]:
    """Yield the floating parameters and buffers of a network; none of a plain function."""
    if isinstance(net, nn.Module):
        yield from (part for part in itertools.chain(net.parameters(), net.buffers()) if part.is_floating_point())


def _output(net: Network, x: Tensor, time: Tensor) -> Tensor:
    """Return the network's output in the dtype and on the device of x, having called it in its own."""
    own = next(_tensors_of(net), x)
    time = time.to(own.device) if not time.is_floating_point() else time.to(own.device, _wide(own))
    answer = net(x.to(own), time)
    answer = getattr(answer, "sample", answer)
    if not isinstance(answer, Tensor) or answer.shape != x.shape:
        fix = f"It is called with x of shape {tuple(x.shape)} and times of shape {tuple(time.shape)}, one per chain."
        raise ValueError(checks.message(f"the network to return shape {tuple(x.shape)}", checks.describe(answer), fix))
    return answer.to(x)


def _level_score(
    score: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigma: Tensor, directions: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return score and divergence by forward mode, or by reverse mode where a layer has no forward one.

    v . J v is v . J^T v: both give the same number.
    """
    try:
        return level_score(score, x, sigma, directions)
    except RuntimeError:  # such as group norm behind attention
        v = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device) if directions is None else directions
        with torch.inference_mode(False), torch.enable_grad():
            many = x.clone().repeat(len(v), *(1,) * (x.ndim - 1)).requires_grad_()
            values = score(many, sigma.clone().repeat(len(v)))
            along = v.clone().repeat_interleave(len(x), 0).reshape(many.shape)
            (products,) = torch.autograd.grad(values, many, along)
        return values[: len(x)].detach(), (products * along).flatten(1).sum(1).reshape(len(v), len(x)).sum(0)

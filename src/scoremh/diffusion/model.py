r"""`DiffusionModel`: scores of all noise levels from other people's diffusion networks, and the adapters.

A network is called as `net(input, time)` with inputs `(chain, *event)` and one time per chain, in its own dtype and on
its own device; the time is sigma, another continuous time, or the index of a timestep. In the coordinates
x = x0 + sigma z every network F gives the score as

    s(x, sigma) = skip(sigma) x + gain(sigma) F(scale(sigma) x, time)

With abar = 1 / (1 + sigma^2) and t = sigma / (1 + sigma), and D = x + sigma^2 s the denoiser:

| prediction | F | its input | score |
|---|---|---|---|
| `DENOISER` | D = E[x0 \| x] | x | (F - x) / sigma^2 |
| `SCORE` | s | x | F |
| `EPSILON` | E[z \| x] | sqrt(abar) x | -F / sigma |
| `X0` | D | sqrt(abar) x | (F - x) / sigma^2 |
| `V` | sqrt(abar) E[z \| x] - sqrt(1 - abar) D | sqrt(abar) x | -abar x - sqrt(abar) F / sigma |
| `VELOCITY` | E[z \| x] - D | (1 - t) x | -(1 - t) (x + F) / sigma |
| `preconditioned` | the network inside Karras et al. (2022) | x / sqrt(sigma^2 + sigma_data^2) | see there |

`check_wrapping` tests whether the adapter fits the network.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, TypedDict, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scoremh._shared import checks, rng
from scoremh._shared.algebra import per_chain
from scoremh.coordinates import Affine
from scoremh.diffusion.log_density import LogDensity
from scoremh.types import LogDensityFn, Target

Time = Callable[[Tensor], Tensor]
SNAP = 1e-3  # distance to a timestep, in timesteps, below which a time is rounded: the error of float32


def flow_time(sigma: Tensor) -> Tensor:
    """Return t = sigma / (1 + sigma), the time of flow matching and rectified flow."""
    return sigma / (1 + sigma)


def log_time(sigma: Tensor) -> Tensor:
    """Return log(sigma) / 4, the time of Karras et al. (2022)."""
    return sigma.log() / 4


@dataclass(frozen=True)
class Timesteps:
    """The timestep of a noise level: its index in the training schedule, interpolated linearly in log sigma."""

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise an error unless the levels increase or decrease."""
        steps = [b - a for a, b in zip(self.levels, self.levels[1:], strict=False)]
        positive = all(math.isfinite(level) and level > 0 for level in self.levels)
        if not steps or not positive or not (min(steps) > 0 or max(steps) < 0):
            fix = "Pass the levels of training, one per timestep, in the order of the timesteps."
            got = f"{len(self.levels)} levels, {checks.short(list(self.levels))}"
            raise ValueError(checks.message("two or more positive noise levels in order", got, fix))

    @cached_property
    def _rising(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the levels and their indices, from low to high."""
        levels = torch.tensor(self.levels, dtype=torch.float64).log()
        order = levels.argsort()
        return levels[order], order.double()

    def __call__(self, sigma: Tensor) -> Tensor:
        """Return the index, fractional between two timesteps."""
        levels, index = (part.to(sigma) for part in self._rising)
        at = sigma.log()
        high = torch.searchsorted(levels, at).clamp(1, len(levels) - 1)
        share = ((at - levels[high - 1]) / (levels[high] - levels[high - 1])).clamp(0, 1)
        time = torch.lerp(index[high - 1], index[high], share)
        nearest = time.round()
        return torch.where((time - nearest).abs() < SNAP, nearest, time)


def from_alphas_cumprod(alphas_cumprod: Tensor | Sequence[float]) -> Timesteps:
    """Return the timesteps of a variance-preserving process; sigma^2 = (1 - abar) / abar.

    Timesteps with abar = 0, pure noise, have no finite level and are left out.
    """
    abar = torch.as_tensor(alphas_cumprod, dtype=torch.float64, device="cpu").flatten()
    if not bool(((abar >= 0) & (abar < 1)).all()):
        fix = "Pass the cumulative product of 1 - beta, such as scheduler.alphas_cumprod."
        raise ValueError(checks.message("alphas_cumprod from 0 to below 1", checks.short(abar.tolist()), fix))
    some = abar[abar > 0]
    return Timesteps(tuple(((1 - some) / some).sqrt().tolist()))


Coefficient = Callable[[Tensor], Tensor]


class Prediction(NamedTuple):
    """The quantity that a network predicts, and how it gives the score."""

    name: str
    scale: Coefficient
    """Factor of x at the input of the network, a function of sigma."""
    skip: Coefficient
    """Factor of x in the score."""
    gain: Coefficient
    """Factor of the network's output in the score."""

    def factors(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scale, skip and gain at noise levels."""
        return self.scale(sigma), self.skip(sigma), self.gain(sigma)


def root_abar(sigma: Tensor) -> Tensor:
    """Return sqrt(abar), the factor of x0 in a variance-preserving process."""
    return (1 + sigma.square()).rsqrt()


DENOISER = Prediction("a denoiser", torch.ones_like, lambda sigma: -(sigma**-2), lambda sigma: sigma**-2)
SCORE = Prediction("a score", torch.ones_like, torch.zeros_like, torch.ones_like)
EPSILON = Prediction("an epsilon network", root_abar, torch.zeros_like, lambda sigma: -1 / sigma)
X0 = Prediction("an x0 network", root_abar, DENOISER.skip, DENOISER.gain)
V = Prediction(
    "a v network", root_abar, lambda sigma: -1 / (1 + sigma.square()), lambda sigma: -root_abar(sigma) / sigma
)
VELOCITY = Prediction(
    "a velocity network",
    lambda sigma: 1 / (1 + sigma),
    lambda sigma: -1 / (sigma * (1 + sigma)),
    lambda sigma: -1 / (sigma * (1 + sigma)),
)


def preconditioned(sigma_data: float, sign: float = 1.0) -> Prediction:
    """Return the prediction of a network inside the preconditioning of Karras et al. (2022).

    D = sigma_data^2 x / w^2 + sigma sigma_data F / w with w^2 = sigma^2 + sigma_data^2, so that the score is
    -x / w^2 + sigma_data F / (sigma w).
    """

    def scale(sigma: Tensor) -> Tensor:
        return (sigma.square() + sigma_data**2).rsqrt()

    return Prediction(
        "a preconditioned network",
        scale,
        lambda sigma: -scale(sigma).square(),
        lambda sigma: sign * sigma_data * scale(sigma) / sigma,
    )


class Reading(NamedTuple):
    """One interpretation of a network: what it predicts, and which time it is called with."""

    prediction: Prediction
    time: Time


LevelScoreFn = Callable[[Tensor, Tensor], Tensor]


def level_score(
    score: LevelScoreFn,
    x: Float[Tensor, "chain *event"],
    sigma: Tensor | float,
    directions: Float[Tensor, "direction d"] | None = None,
    left: Float[Tensor, "direction d"] | None = None,
) -> tuple[Float[Tensor, "chain *event"], Float[Tensor, " chain"]]:
    """Return a score and sum_i a_i . J v_i, which is its divergence if a_i and v_i are the unit vectors.

    Args:
        score: Score called as `score(x, sigma)`, with one noise level per chain.
        x: Points, `(chain, *event)`.
        sigma: Noise level, a number or one per chain.
        directions: Vectors v_i over the flattened event; the unit vectors if None.
        left: Vectors a_i; the same as v_i if None.
    """
    size = x[0].numel()
    v = torch.eye(size, dtype=x.dtype, device=x.device) if directions is None else directions.to(x)
    level = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
    # one call with every chain in every direction: vmap does not support all layers
    many, levels = x.repeat_interleave(len(v), 0), level.repeat_interleave(len(v))
    along = v.repeat(len(x), 1).reshape(many.shape)
    both: tuple[Tensor, Tensor] = torch.func.jvp(lambda at: score(at, levels), (many,), (along,))  # type: ignore[assignment]
    values, products = both
    checks.returned(values, many, many.shape, "score")
    ends = along if left is None else left.to(x).repeat(len(x), 1).reshape(many.shape)
    return values[:: len(v)], (products * ends).flatten(1).sum(1).reshape(len(x), len(v)).sum(1)


def random_directions(size: int, like: Tensor, probes: int, seed: int = 0) -> Float[Tensor, "direction d"]:
    """Return directions for Hutchinson's estimate: random signs over sqrt(n), the same for every point.

    A divergence estimated along fixed directions is a fixed function of x, so that chains that use it are reversible;
    but it is biased, and so are the weights of modes.

    Args:
        size: Number of coordinates of an event.
        like: Tensor with the dtype and device of the points.
        probes: Number n of directions.
        seed: Random seed; the same seed gives the same directions.
    """
    checks.count(probes, "probes")
    signs = rng.uniform((probes, size), like, rng.seeded(seed, like.device)).sub(0.5).sign()
    directions: Tensor = signs / probes**0.5
    return directions


Network = Callable[[Tensor, Tensor], object]
ROUNDING = 1e-6  # relative tolerance for noise levels, since schedules are rounded


class Conditional(nn.Module):
    """A network of input, time and condition, `net(input, time, condition)`, under one condition or several.

    It is wrapped like any other network: `from_denoiser(Conditional(net, x_1[None]))` is the model given x_1, and
    `model.given(x_2)` the same given x_2. With several conditions a batch has a block of rows for each.

    Args:
        net: Network, which gets one condition for every row.
        conditions: Conditions, `(condition, *shape)`.
    """

    conditions: Tensor

    def __init__(self, net: Callable[[Tensor, Tensor, Tensor], object], conditions: Tensor) -> None:
        super().__init__()
        self.net, self.conditions = net, conditions  # no buffer: its dtype is not that of the network

    def forward(self, x: Tensor, time: Tensor) -> object:
        """Return the output of the network."""
        return self.net(x, time, self.conditions.to(x).repeat_interleave(len(x) // len(self.conditions), 0))


def together(models: Sequence["DiffusionModel"]) -> "DiffusionModel | None":
    """Return one model for the conditions of several, which takes one network call; None if they differ otherwise.

    Args:
        models: Models, such as `[model.given(x) for x in observations]`.
    """
    nets = [model.net for model in models if isinstance(model.net, Conditional) and model.max_rows is None]
    names = [f.name for f in fields(DiffusionModel) if f.name not in ("net", "unchecked")]
    settings = [[getattr(model, name) for name in names] for model in models]
    same = all(
        a is b or (not isinstance(a, Tensor) and a == b)
        for others in settings
        for a, b in zip(settings[0], others, strict=True)
    )
    if len(nets) < len(models) or not same or any(net.net is not nets[0].net for net in nets):
        return None
    return replace(models[0], net=Conditional(nets[0].net, torch.cat([net.conditions for net in nets])), unchecked=[])


@dataclass(frozen=True, eq=False, repr=False)
class DiffusionModel:
    """Scores of a distribution at all noise levels, in coordinates x = x0 + sigma z, whatever the network predicts.

    `model.at(sigma)` is the target at one level, for `anneal`, `annealing.flow` and kernels; the model itself is the
    target at `noise_level`. Created by `from_epsilon` and the other adapters of `scoremh.diffusion`.

    Args:
        net: Network called as `net(input, time)`, with one time per chain; it returns a tensor, or an object with the
            attribute `sample`.
        prediction: Quantity that the network predicts.
        time: Function from sigma to the network's time.
        noise_range: Lowest and highest noise level of the network.
        noise_level: Noise level of the model as a target.
        continuous_time: Whether the network accepts times between two timesteps; if not, its outputs at both are
            interpolated.
        variance: Variance of the data, averaged over their coordinates.
        mean: Mean of the data, a number or a tensor of the event's shape; `log_density` needs it.
        max_rows: Largest number of rows in one network call, to limit memory; no limit if None.
        probes: Number of random directions of an estimated divergence (Hutchinson); exact divergence if None.
        origin: Point of the data's coordinates that is 0 in the coordinates of the model.
        event: Event with the shape, dtype and device in which to start chains; None if not known.
        unchecked: List that is empty once the adapter has been checked, which happens at the first points.
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
        """Raise an error for invalid parameters."""
        low, high = self.noise_range
        checks.positive(low, "the lowest noise level")
        checks.positive(high, "the highest noise level")
        if low >= high:
            raise ValueError(checks.message("an increasing noise range", self.noise_range, "Swap its ends."))
        checks.positive(self.variance, "variance")
        for name in ("max_rows", "probes"):
            if (number := getattr(self, name)) is not None:
                checks.count(number, name)
        self._require(self.noise_level)

    @property
    def levels(self) -> tuple[float, ...] | None:
        """Noise levels of the timesteps of a network; None if it was trained in continuous time."""
        return self.time.levels if isinstance(self.time, Timesteps) else None

    @property
    def coordinates(self) -> Affine:
        """The shift by the mean of the data."""
        return Affine(torch.as_tensor(self.mean), torch.ones(()))

    @property
    def standard(self) -> "DiffusionModel":
        """The same model, in coordinates in which the data have mean 0."""
        return replace(self, mean=0.0, origin=self.origin + self.mean)

    @property
    def log_density(self) -> LogDensityFn:
        """The function x -> log p(x) at the model's noise level, normalised, computed through noise."""
        return LogDensity(self)

    def given(self, condition: Tensor) -> "DiffusionModel":
        """Return the same model under another condition, of a `Conditional` network.

        Args:
            condition: Condition, such as an observation, of the shape of one.
        """
        if not isinstance(self.net, Conditional):
            fix = "Wrap the network: from_denoiser(Conditional(net, x_1[None])), for example."
            raise TypeError(checks.message("a model of a Conditional network", checks.named(self.net), fix))
        return replace(self, net=Conditional(self.net.net, condition[None]))

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
        parts = [
            jacobian_product(self._score, part, its_level, directions)
            for part, its_level in zip(x.split(rows), level.split(rows), strict=True)
        ]
        scores, divergences = zip(*parts, strict=True)
        return torch.cat(scores), torch.cat(divergences)

    def check(self, like: Tensor | Sequence[int]) -> str | None:
        """Check whether the adapter fits the network; return a description of the problem and warn, or return None.

        At the highest noise level the score must be close to -x / (variance + sigma^2), and the denoiser D that it
        implies must respond to x as a denoiser does. With samples, the error of D must not be larger than that of the
        best linear denoiser; if the network's output is nearly 0, that of the best denoiser made from samples.

        Args:
            like: Shape of an event, or samples of the data, `(sample, *event)`, which give a stronger check.
        """
        return self._check(event_like(like, self.net), like if isinstance(like, Tensor) else None)

    def _check(self, event: Tensor, samples: Tensor | None = None) -> str | None:
        """Check the adapter on noise like this event."""
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
        """Check the adapter at the first points."""
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
            output = self._network_output(part * scale, reading.time(its_level))
            parts.append(skip * part + gain * output)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _network_output(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the network's output, interpolated between two timesteps if it does not accept other times."""
        if self.continuous_time:
            return _output(self.net, x, time)
        before = time.floor()
        first = _output(self.net, x, before.long())
        if bool((time == before).all()):
            return first
        return torch.lerp(first, _output(self.net, x, time.ceil().long()), per_chain(time - before, x).to(x.dtype))

    def _require(self, noise_level: float) -> None:
        """Raise an error for a noise level outside the network's range."""
        low, high = self.noise_range
        if not low * (1 - ROUNDING) <= noise_level <= high * (1 + ROUNDING):
            fix = "Choose a level within the range that the network was trained on."
            raise ValueError(checks.message(f"a noise level from {low:g} to {high:g}", noise_level, fix))

    def __repr__(self) -> str:
        """Return the prediction, the noise levels, and the interpolation between them."""
        low, high = self.noise_range
        text = f"diffusion model by {self.prediction.name}, noise levels {low:.3g} to {high:.3g}"
        if self.levels is not None:
            between = "the time is interpolated" if self.continuous_time else "outputs are interpolated"
            text += f" in {len(self.levels)} timesteps (between two of them {between} in log sigma)"
        return f"{text}, read at {self.noise_level:.3g}"


def event_like(like: Tensor | Sequence[int], net: Network) -> Tensor:
    """Return the first of some samples, or zeros of this shape with the dtype and device of the network."""
    if isinstance(like, Tensor):
        checks.events(like, "like")
        return like[0]
    own = next(_tensors_of(net), torch.empty(()))
    return torch.zeros(tuple(like), dtype=_wide(own), device=own.device)


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype for noise levels: that of x, but at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def _to(value: Tensor | float, x: Tensor) -> Tensor | float:
    return value.to(x) if isinstance(value, Tensor) else value


def _tensors_of(net: object) -> Iterator[Tensor]:
    """Yield the floating parameters and buffers of a network; nothing for a plain function."""
    if isinstance(net, nn.Module):
        yield from (part for part in itertools.chain(net.parameters(), net.buffers()) if part.is_floating_point())


def _output(net: Network, x: Tensor, time: Tensor) -> Tensor:
    """Call the network in its own dtype and device, and return the output in those of x."""
    own = next(_tensors_of(net), x)
    time = time.to(own.device) if not time.is_floating_point() else time.to(own.device, _wide(own))
    output = net(x.to(own), time)
    output = getattr(output, "sample", output)
    if not isinstance(output, Tensor) or output.shape != x.shape:
        fix = f"It is called with x of shape {tuple(x.shape)} and times of shape {tuple(time.shape)}, one per chain."
        raise ValueError(checks.message(f"the network to return shape {tuple(x.shape)}", checks.describe(output), fix))
    return output.to(x)


@sdpa_kernel(SDPBackend.MATH)  # faster attention kernels do not support forward-mode differentiation
def jacobian_product(
    score: LevelScoreFn, x: Tensor, sigma: Tensor | float, directions: Tensor | None, left: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `level_score` by forward mode, or by reverse mode if a layer does not support forward mode.

    Both give the same number, since a . J v = v . J^T a.
    """
    try:
        return level_score(score, x, sigma, directions, left)
    except RuntimeError:  # for example from group norm after attention
        v = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device) if directions is None else directions
        a, level = v if left is None else left, torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        with torch.inference_mode(False), torch.enable_grad():
            many = x.clone().repeat(len(v), *(1,) * (x.ndim - 1)).requires_grad_()
            values = score(many, level.clone().repeat(len(v)))
            along, ends = (each.clone().repeat_interleave(len(x), 0).reshape(many.shape) for each in (v, a))
            (products,) = torch.autograd.grad(values, many, ends)
        return values[: len(x)].detach(), (products * along).flatten(1).sum(1).reshape(len(v), len(x)).sum(0)


By = Literal["index", "sigma"]
EDM_RANGE = 0.002, 80.0  # Karras et al. (2022), table 1
EDM_SIGMA_DATA = 0.5
FLOW_RANGE = 0.01, 100.0  # t from 0.0099 to 0.9901


class Settings(TypedDict, total=False):
    """Keyword arguments of every adapter."""

    noise_level: float
    """Noise level of the model as a target; the lowest by default."""
    variance: float
    """Variance of the data, averaged over their coordinates; 1 by default."""
    mean: Tensor | float
    """Mean of the data, for `log_density`; 0 by default."""
    max_rows: int
    """Largest number of rows in one network call, to limit memory; no limit by default."""
    probes: int
    """Number of random directions of an estimated divergence; by default the divergence is exact."""
    like: Tensor | Sequence[int]
    """Shape of an event, or samples of the data, to check the adapter immediately and not at the first points. Samples
    give a stronger check. A `Sampler` starts its chains in this shape."""


class TimestepSettings(Settings, total=False):
    """Keyword arguments of adapters for networks with timesteps: `Settings` and `continuous_time`."""

    continuous_time: bool
    """Whether the network accepts times between two timesteps, as floats (the default); if not, it is called with
    integers, and its outputs at both timesteps are interpolated."""


def from_denoiser(
    net: Network, noise_range: tuple[float, float] = EDM_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a denoiser, `net(x, sigma) = E[x0 | x0 + sigma z = x]`.

    Args:
        net: Network or function.
        noise_range: Lowest and highest noise level of the network.
        settings: Settings of the model, see `Settings`.

    Example:
        >>> def denoise(x, sigma):  # of standard normal events
        ...     return x / (1 + sigma[:, None] ** 2)
        >>> model = from_denoiser(denoise, (0.01, 50.0))
        >>> model.at(2.0).score(torch.ones(1, 2))
        tensor([[-0.2000, -0.2000]])
    """
    return built(net, DENOISER, torch.clone, noise_range, **settings)


def from_edm(
    net: Network, noise_range: tuple[float, float] = EDM_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network of Karras et al. (2022) with its preconditioning: `net(x, sigma)` is a denoiser.

    Args:
        net: Network; by default the variance of the data is `net.sigma_data` squared, or 0.25 without this attribute.
        noise_range: Lowest and highest noise level of the network.
        settings: Settings of the model, see `Settings`.
    """
    settings.setdefault("variance", float(getattr(net, "sigma_data", EDM_SIGMA_DATA)) ** 2)
    return from_denoiser(net, noise_range, **settings)


def from_epsilon(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts the noise: `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)` is z.

    Args:
        net: Network.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, EPSILON, from_alphas_cumprod(alphas_cumprod), **settings)


def from_x0(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts the data: `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)` is x0.

    Args:
        net: Network.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, X0, from_alphas_cumprod(alphas_cumprod), **settings)


def from_v(
    net: Network, alphas_cumprod: Tensor | Sequence[float], **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Adapt a network that predicts v = sqrt(abar) z - sqrt(1 - abar) x0 (Salimans and Ho 2022).

    Args:
        net: Network, called as `net(sqrt(abar) x0 + sqrt(1 - abar) z, timestep)`.
        alphas_cumprod: abar of every timestep.
        settings: Settings of the model, see `TimestepSettings`.
    """
    return discrete(net, V, from_alphas_cumprod(alphas_cumprod), **settings)


def from_velocity(
    net: Network, noise_range: tuple[float, float] = FLOW_RANGE, **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network of flow matching or rectified flow: `net((1 - t) x0 + t z, t)` is z - x0; sigma = t / (1 - t).

    If time runs from noise to data, pass `lambda x, t: -net(x, 1 - t)`.

    Args:
        net: Network.
        noise_range: Lowest and highest noise level to use; t = 0.0099 to 0.9901 by default.
        settings: Settings of the model, see `Settings`.
    """
    return built(net, VELOCITY, flow_time, noise_range, **settings)


def from_score(
    net: Network, sigmas: Tensor | Sequence[float], *, by: By = "index", **settings: Unpack[Settings]
) -> DiffusionModel:
    """Adapt a network that is a score: `net(x0 + sigma z, index or sigma)` (NCSN, variance exploding).

    Args:
        net: Network.
        sigmas: Noise levels of training, in the order of their indices.
        by: "index" if the network is called with the index of a level, an integer; "sigma" if it is called with sigma.
        settings: Settings of the model, see `Settings`.
    """
    checks.one_of(by, get_args(By), "by")
    levels = tuple(float(sigma) for sigma in sigmas)
    if by == "index":
        return discrete(net, SCORE, Timesteps(levels), continuous_time=False, **settings)
    return built(net, SCORE, torch.clone, (min(levels), max(levels)), **settings)


def discrete(
    net: Network, prediction: Prediction, time: Timesteps, **settings: Unpack[TimestepSettings]
) -> DiffusionModel:
    """Return the model of a network with timesteps."""
    return built(net, prediction, time, (min(time.levels), max(time.levels)), **settings)


def built(
    net: Network,
    prediction: Prediction,
    time: Time,
    noise_range: tuple[float, float],
    **settings: Unpack[TimestepSettings],
) -> DiffusionModel:
    """Return the model of a network; raise an error if it is random, and check the adapter if `like` is given."""
    if not callable(net):
        fix = "Pass a network or a function of x and a time."
        raise TypeError(checks.message("a callable network", checks.describe(net), fix))
    if isinstance(net, nn.Module) and any(part.training and _mixes_or_draws(part) for part in net.modules()):
        got = "one in training mode, with dropout or batch norm"
        raise ValueError(checks.message("a network in evaluation mode", got, "Call net.eval() first."))
    like = settings.pop("like", None)
    event = None if like is None else event_like(like, net)
    settings.setdefault("noise_level", noise_range[0])
    model = DiffusionModel(net, prediction, time, noise_range, event=event, **settings)  # type: ignore[misc]
    if like is not None:
        model.check(like)
    return model


def _mixes_or_draws(part: nn.Module) -> bool:
    """Return whether a layer in training mode mixes the rows of a batch, or is random."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    return isinstance(part, nn.modules.batchnorm._BatchNorm)


class WrappingWarning(UserWarning):
    """The network does not seem to fit its adapter."""


ROWS = 8  # points of noise, each with its opposite; more if an axis of the event has the length of the batch
# Limits between wrong pairs of adapter and network, whose errors are at least a tenth above one of them, and networks
# trained for a few seconds on the plane or on digits; noise is not what these have learned from.
SCORE_ERROR = 0.5  # largest relative error; trained networks reach a few per cent
DIRECT_SLOPE = 0.9  # an epsilon network has slope 1 / sqrt(v), a denoiser sqrt(v) / k
VARIANCES = 0.0003, 5.0  # the lower limit allows variance=1 for images in [0, 1] (0.07) that vary in few directions
MIN_SLOPE = 0.05  # the slope of a denoiser is nearly 1 at low noise
LINEAR_EXCESS = 1.1  # error over that of a linear denoiser: below 1 for a perfect network
SAMPLE_LEVELS = 0.5, 1.0  # in units of sqrt(v): a velocity equal to its input is nearly right at no more than one level
SILENT_EXCESS = 1.03  # allowance for chance in the errors on 256 samples
MIN_RESPONSE = 0.01  # root mean square of the odd part of the output at 3 sqrt(v), below which the network is silent
MAX_SAMPLES = 256
NOISE_PREDICTIONS = EPSILON, SCORE
DATA_PREDICTIONS = DENOISER, X0


class Probe(NamedTuple):
    """Inputs of the tests besides the reading: score, levels, the data's variance, noise, and samples or None."""

    score: Callable[[Reading, Tensor, float], Tensor]
    noise_range: tuple[float, float]
    variance: float
    noise: Tensor
    samples: Tensor | None


def check_wrapping(
    score: Callable[[Reading, Tensor, float], Tensor],
    own: Reading,
    *,
    noise_range: tuple[float, float],
    variance: float,
    like: Tensor,
    samples: Tensor | None = None,
    other_times: bool = True,
) -> str | None:
    r"""Check whether a reading fits a network; return a description of the problem and warn, or return None.

    For a distribution of any shape with variance v, the denoiser D = x + sigma^2 s responds to x with a positive slope,
    which is v / (v + sigma^2) at levels above the width of the distribution. The score is therefore evaluated at
    x = +-k z, k^2 = v + sigma^2, at some levels; its odd part in x does not depend on the mean of the data.

    | test | level | requirement |
    |---|---|---|
    | score | highest | equal to -x / k^2, within `SCORE_ERROR` |
    | direct | highest, for networks that predict D there | slope of D along z, within `DIRECT_SLOPE` sqrt(v) |
    | variance | 3 sqrt(v), for the same networks also 10 sqrt(v) | the v given by the slope of D, in `VARIANCES` v |
    | slope | 0.02 sqrt(v) | slope of D above `MIN_SLOPE` |
    | samples | sqrt(v), and sqrt(v) / 2 except x0 and denoisers | squared error of D over a linear denoiser's |
    | answer | sqrt(v), if the output is nearly 0 | the same over the best simple denoiser's |

    A network that is called with the wrong kind of time may return nearly 0, which as v is right for N(0, I), or its
    input, which as a velocity is a linear denoiser too. Samples detect this, noise does not. A network that returns 0
    for data that are N(0, I) cannot be detected.
    """
    rows = next(n for n in itertools.count(ROWS) if 2 * n not in like.shape)
    noise = rng.normal((rows, *like.shape), like, rng.seeded(0, like.device))
    if samples is not None:
        samples = samples[:MAX_SAMPLES]
        variance = float((samples - samples.mean(0)).square().mean())
    probe = Probe(score, noise_range, variance, noise, samples)
    with torch.no_grad():
        found = misfits(probe, own)
        if max(found.values()) <= 1:
            return None
        message = _message(probe, own, found, _better_reading(probe, own, other_times))
    checks.warn(message, WrappingWarning)
    return message


def misfits(probe: Probe, reading: Reading) -> dict[str, float]:
    """Return by test the error of a reading over its limit, infinite for NaN; above 1 the test fails."""
    low, high = probe.noise_range
    width, k = math.sqrt(probe.variance), math.sqrt(probe.variance + high**2)
    direct = reading.prediction not in NOISE_PREDICTIONS
    error, slope = _response(probe, reading, high)
    found = {"score": error / SCORE_ERROR}
    if direct:
        found["direct"] = abs(slope * k - probe.variance / k) / (DIRECT_SLOPE * width)
    for ratio in (3, 10) if direct else (3,):
        sigma = ratio * width
        if low <= sigma <= high:
            slope = _response(probe, reading, sigma)[1]
            found[f"variance at {sigma:.3g}"] = _variance_misfit(_implied_variance(slope, sigma) / probe.variance)
    lowest = max(low, 0.02 * width)
    slope = _response(probe, reading, lowest)[1]
    found["slope"] = MIN_SLOPE / slope if slope > 0 else math.inf
    if probe.samples is not None:
        found |= _sample_misfits(probe, reading, probe.samples)
    return {name: value if math.isfinite(value) else math.inf for name, value in found.items()}


def _odd_part(probe: Probe, reading: Reading, sigma: float) -> tuple[Tensor, Tensor]:
    """Return noise as wide as the data at this level, and the odd part of the score there."""
    x = math.sqrt(probe.variance + sigma**2) * probe.noise
    up, down = probe.score(reading, torch.cat([x, -x]), sigma).chunk(2)
    return x, (up - down) / 2


def _response(probe: Probe, reading: Reading, sigma: float) -> tuple[float, float]:
    """Return the relative error of the odd part of the score of noise, and the slope of D along x."""
    x, odd = _odd_part(probe, reading, sigma)
    expected = -x / (probe.variance + sigma**2)
    slope = 1 + sigma**2 * float((odd * x).sum() / x.square().sum())
    return float((odd - expected).norm() / expected.norm()), slope


def _implied_variance(slope: float, sigma: float) -> float:
    """Return the variance v for which v / (v + sigma^2) is this slope."""
    return slope * sigma**2 / (1 - slope) if slope < 1 else math.inf


def _variance_misfit(ratio: float) -> float:
    """Return the distance of a ratio of variances from 1 in the logarithm, over that of the limit on its side."""
    if not 0 < ratio < math.inf:
        return math.inf
    return math.log(ratio) / math.log(VARIANCES[1] if ratio > 1 else VARIANCES[0])


def _sample_misfits(probe: Probe, reading: Reading, samples: Tensor) -> dict[str, float]:
    """Return the errors of D on noisy samples over their limits."""
    width, found = math.sqrt(probe.variance), {}
    # an error of a network that predicts D is an error of D at all levels; that of others shrinks with sigma
    for ratio in SAMPLE_LEVELS[reading.prediction in DATA_PREDICTIONS :]:
        sigma, x, error = _noisy_samples(probe, reading, samples, ratio * width)
        linear = linear_denoiser(samples.flatten(1), x.flatten(1), sigma)
        excess = error / float((linear - samples.flatten(1)).square().mean())
        found[f"samples at {sigma:.3g}"] = excess / LINEAR_EXCESS
    zero_denoises = reading.prediction not in (*NOISE_PREDICTIONS, *DATA_PREDICTIONS)
    if zero_denoises and not _responds(probe, reading):  # the last level is sqrt(v)
        found["answer"] = error / least_error(samples, x, sigma) / SILENT_EXCESS
    return found


def _noisy_samples(probe: Probe, reading: Reading, samples: Tensor, sigma: float) -> tuple[float, Tensor, float]:
    """Return the nearest level in range, samples with its noise, and the mean squared error of D on them."""
    sigma = min(max(sigma, probe.noise_range[0]), probe.noise_range[1])
    x = samples + sigma * rng.normal(tuple(samples.shape), samples, rng.seeded(1, samples.device))
    denoised = x + sigma**2 * probe.score(reading, x, sigma)
    return sigma, x, float((denoised - samples).square().mean())


def _responds(probe: Probe, reading: Reading) -> bool:
    """Return whether the network's output depends on its input; otherwise several readings would fit."""
    raw = reading.prediction._replace(skip=torch.zeros_like, gain=torch.ones_like)
    sigma = min(3 * math.sqrt(probe.variance), probe.noise_range[1])
    _, odd = _odd_part(probe, reading._replace(prediction=raw), sigma)
    return float(odd.square().mean()) > MIN_RESPONSE**2


def _better_reading(probe: Probe, own: Reading, other_times: bool) -> tuple[str, str] | None:
    """Return the name and the adapter call of the reading that fits best; None if no reading fits."""
    # if the timesteps are unknown, try those of the first diffusion models: Ho et al. (2020)
    usual = from_alphas_cumprod((1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0))
    index = own.time if isinstance(own.time, Timesteps) else usual
    readings = {
        "diffusion.from_epsilon(net, alphas_cumprod)": Reading(EPSILON, index),
        "diffusion.from_x0(net, alphas_cumprod)": Reading(X0, index),
        "diffusion.from_v(net, alphas_cumprod)": Reading(V, index),
        "diffusion.from_score(net, sigmas)": Reading(SCORE, index),
    }
    if other_times:
        readings |= {
            "diffusion.from_denoiser(net)": Reading(DENOISER, torch.clone),
            "diffusion.from_velocity(net)": Reading(VELOCITY, flow_time),
            'diffusion.from_score(net, sigmas, by="sigma")': Reading(SCORE, torch.clone),
        }
    fits: dict[str, float] = {}
    for call, reading in readings.items():
        with suppress(Exception):  # a network may raise an error for a wrong guess
            found = misfits(probe, reading).values()
            if max(found) <= 1 and _responds(probe, reading):
                fits[call] = sum(found) / len(found)
    if not fits:
        return None
    best = min(fits, key=fits.__getitem__)
    return readings[best].prediction.name, best


def _better_variance(probe: Probe, own: Reading) -> float | None:
    """Return the variance of the data implied by the network, if the reading fits with it; else None."""
    sigma = min(10 * math.sqrt(probe.variance), probe.noise_range[1])
    implied = _implied_variance(_response(probe, own, sigma)[1], sigma)
    if not 0 < implied < math.inf or max(misfits(probe._replace(variance=implied), own).values()) > 1:
        return None
    return implied


def _message(probe: Probe, own: Reading, found: dict[str, float], better: tuple[str, str] | None) -> str:
    """Return the text of the warning."""
    worst = max(found, key=found.__getitem__)
    text = (
        f"the network was adapted as {own.prediction.name} but does not behave like one "
        f"(test {worst!r}: {found[worst]:.3g}, where at most 1 is allowed)"
    )
    if better is not None:
        return f"{text}: this looks like {better[0]}. Use {better[1]}."
    if (implied := _better_variance(probe, own)) is not None:
        return (
            f"variance={probe.variance:.3g} was passed, but the network was trained on about {implied:.2g}: pass that."
        )
    return (
        f"{text}, nor like any other that scoremh.diffusion supports. Check that it is trained, that the schedule is "
        f"the one of its training, and that the data's variance is {probe.variance:.3g}."
    )


# Denoisers that need only samples. With x = x0 + sigma z, E[x0 | x] has the smallest squared error of all functions of
# x, smaller than that of each of these. The last two do not use a point's own sample to denoise it.
Rows = Float[Tensor, "sample d"]


def linear_denoiser(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised by the best common factor of all directions."""
    mean = samples.mean(0)
    variance = float((samples - mean).square().mean())
    return torch.lerp(mean.expand_as(x), x, variance / (variance + sigma**2))


def wiener(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised with mean and covariance, each half with those of the other half."""
    middle = len(samples) // 2
    halves = (samples[middle:], x[:middle]), (samples[:middle], x[middle:])
    return torch.cat([_wiener(seen, noisy, sigma) for seen, noisy in halves])


def _wiener(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return C (C + sigma^2)^-1 (x - m) + m, by a matrix over samples, of which there may be fewer than coordinates."""
    mean = samples.mean(0)
    rows = (samples - mean) / math.sqrt(max(1, len(samples) - 1))  # C is their rows^T rows
    gram = rows @ rows.T
    gram.diagonal().add_(sigma**2)
    shares: Tensor = torch.linalg.solve(gram, rows @ (x - mean).T)
    return mean + shares.T @ rows


def kernel(samples: Rows, x: Rows, sigma: float) -> Rows:
    """Return noisy samples denoised by a mean of the other samples, weighted by the likelihood of x given each."""
    log_weights = -torch.cdist(x, samples).square() / (2 * sigma**2)
    own = torch.cdist(samples, samples) == 0  # the sample itself and exact copies
    return log_weights.masked_fill(own, -math.inf).softmax(1).nan_to_num() @ samples


def least_error(samples: Float[Tensor, "sample *event"], x: Float[Tensor, "sample *event"], sigma: float) -> float:
    """Return the mean squared error of the best of these denoisers on noisy samples."""
    rows, noisy = samples.flatten(1), x.flatten(1)
    return min(
        float((denoise(rows, noisy, sigma) - rows).square().mean()) for denoise in (linear_denoiser, wiener, kernel)
    )

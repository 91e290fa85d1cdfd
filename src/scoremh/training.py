"""One optimisation loop for every network: Adam, a schedule, averaged weights, early stopping, checkpoints.

`train` takes a network, a `Loss` and a `Recipe`, and returns a `Fit`, which can be saved and loaded.

The held-out loss is evaluated for averaged weights, `a += (1 - decay) (w - a)` after every step, and these are
returned. The decay grows to its value from a small one, so that the average forgets the initial weights. The held-out
loss uses the same random numbers every time, so only the network changes it. If a loss exceeds the smallest one by at
most a standard error, or by 2 % of the improvement since the first check, the two count as equal. Then the later
weights are kept: they were averaged longer, and at a lower learning rate. Early stopping is for long trainings:
at a high rate, the loss may stay the same for many checks and fall when the rate falls.

A `Checkpoint` holds the state of a training. The same call with the same file resumes it and ends with the same
weights; a different call raises an error. Since anybody can edit the header of a file, a header that describes a
network of 10^12 weights or 10^9 layers raises an error before memory is allocated.
"""

import copy
import json
import math
import platform
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, get_args, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scoremh import networks
from scoremh._shared import checks, rng
from scoremh._shared.files import fingerprint, naming, reading, require_file, require_same, save_tensors
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar

__all__ = [
    "DetailedLoss",
    "DivergenceError",
    "Fit",
    "Loss",
    "ProbedLoss",
    "Recipe",
    "split",
    "train",
    "versions",
]


Schedule = Literal["linear", "cosine", "constant"]
# Share of the steps in which the rate rises. If it is high from the start, the noise of the gradients may switch hidden
# units off for good: with 50,000 rows of two moons in eight columns, one training of two never left a linear score.
WARMUP_SHARE = 0.3


@dataclass(frozen=True)
class Recipe:
    """Options of a training.

    Args:
        steps: Largest number of optimiser steps.
        batch: Number of samples per step, drawn with replacement.
        rate: Adam's largest learning rate.
        schedule: "linear", up in the first 30 % of the steps and then down to 0; "cosine" down to 0; or
            "constant".
        average: Decay of the moving average of the weights; 0 for no averaging.
        clip: Largest norm of a gradient; None for no clipping.
        check_every: Number of steps between two checks of the held-out loss.
        patience: Number of checks without a new smallest loss after which to stop. The best weights are returned;
            losses within a standard error, or 2 % of the improvement, count as equal, and the latest of them wins. None
            trains to the end and returns the last weights.
        held_out: Fraction of the samples held out for the checks, at most 2,000 samples.
    """

    # chosen for `MultilevelDenoising` and fully connected networks, and compared with others in docs/scores.md
    steps: int = 3000
    batch: int = 128
    rate: float = 1e-2
    schedule: Schedule = "linear"
    average: float = 0.999
    clip: float | None = 10.0
    check_every: int = 100
    patience: int | None = 30
    held_out: float = 0.1

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name in ("steps", "batch", "check_every"):
            checks.count(getattr(self, name), name)
        if self.patience is not None:
            checks.count(self.patience, "patience")
        checks.positive(self.rate, "rate")
        if self.clip is not None:
            checks.positive(self.clip, "clip")
        checks.one_of(self.schedule, get_args(Schedule), "schedule")
        if not 0 <= self.average < 1:
            raise ValueError(checks.message("average in [0, 1)", self.average, "0 means no averaging."))
        if not 0 < self.held_out < 1:
            fix = "Early stopping needs samples that are not trained on; 0.1 is a good choice."
            raise ValueError(checks.message("held_out between 0 and 1", self.held_out, fix))


@runtime_checkable
class Loss(Protocol):
    """A loss to train or to evaluate a network with."""

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean loss over a batch, differentiable in the weights."""
        ...


@runtime_checkable
class DetailedLoss(Loss, Protocol):
    """A loss of several terms, which may change during the training."""

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return "loss" and other terms to record, for a batch, at this fraction (`progress`) of the training."""
        ...


@runtime_checkable
class ProbedLoss(Loss, Protocol):
    """A loss whose repr does not identify it, for example because it contains a user's own score."""

    @property
    def probe(self) -> Probe:
        """Numbers that its parts return; a checkpoint with other numbers belongs to another training."""
        ...


Kind = TypeVar("Kind", bound="Fit")


@dataclass(eq=False, repr=False)
class Fit:
    """A trained network with the record of its training. Printing it shows the duration and the losses.

    Args:
        net: Trained network, without gradients and in evaluation mode.
        history: Lists by "step", "loss", "held_out", "rate" and the terms of a `DetailedLoss`, with one number per
            check of the held-out loss.
        recipe: Options of the training.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Duration of the training.
        best: Step at which the network had these weights.
    """

    own_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a subclass that are saved as JSON."""

    net: nn.Module
    history: dict[str, list[float]]
    recipe: Recipe
    seed: int
    seconds: float
    best: int

    def __repr__(self) -> str:
        """Show the size of the training and its losses."""
        size = sum(p.numel() for p in self.net.parameters())
        steps, held = int(self.history["step"][-1]), self.history["held_out"]
        stopped = "stopped early" if steps < self.recipe.steps else "ran to the end"
        first, kept = int(self.history["step"][0]), held[self.history["step"].index(self.best)]
        return (
            f"{size:,} weights, {steps:,} steps of {self.recipe.batch} samples in {self.seconds:.0f} s, {stopped}\n"
            f"held-out loss {held[0]:.4g} at step {first:,}, {kept:.4g} at step {self.best:,}, whose weights these are"
        )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, with a JSON description of the network and its training in the header.

        Args:
            path: File to write.
        """
        header = {name: getattr(self, name) for name in ("history", "seed", "seconds", "best", *self.own_fields)}
        header |= {"recipe": asdict(self.recipe), "net": networks.describe(self.net), "versions": versions()}
        weights = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        save_tensors(Path(path), weights | self._tensors(), {f"scoremh.{type(self).__name__}": json.dumps(header)})

    @classmethod
    def load(cls: type[Kind], path: str | Path, net: nn.Module | None = None) -> Kind:
        """Read a file written by `save`; no code in the file is run.

        Args:
            path: File to read.
            net: A network like the fitted one, if it is not from `scoremh.networks`.
        """
        fields, tensors = _read(path, cls.__name__, net)
        with naming(path, f"a file that {cls.__name__}.save wrote", "Fit again."):
            return cls._restored(fields, tensors)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a subclass other than weights."""
        return {}

    @classmethod
    def _restored(cls: type[Kind], fields: dict[str, Any], tensors: Mapping[str, Tensor]) -> Kind:
        """Return a fit from the fields and the other tensors of a file."""
        return cls(**fields)


SAVE_SECONDS = 10.0  # time between two checkpoints
MAX_HELD_OUT_ROWS = 2000


def train(
    net: nn.Module,
    loss: Loss,
    samples: Tensor,
    *,
    floor: float = -math.inf,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> Fit:
    """Train a network in place, and return it with the averaged weights of the smallest held-out loss.

    Args:
        net: Network to train; its weights are changed.
        loss: Loss to minimise.
        samples: Samples to draw batches from, `(sample, *event)`; some are held out.
        floor: Value below which a loss counts as unbounded, which raises a `DivergenceError`.
        recipe: Options of the training.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write a checkpoint to every ten seconds. The same call with the same file resumes the
            training, and ends with the same weights as a training without interruption.

    Returns:
        The network with its best averaged weights, and its history.
    """
    checks.events(samples, "samples")
    recipe = recipe or Recipe()
    state = State.begin(net, recipe, rng.seeds(1, generator)[0], samples.device)
    what = {"net": str(net), "loss": checks.named(loss), "recipe": asdict(recipe), "samples": fingerprint(samples)}
    probe = loss.probe if isinstance(loss, ProbedLoss) else Probe()
    path = None if checkpoint is None else Path(checkpoint)
    file = Checkpoint(path, what | {"versions": versions()}, probe, any_seed=generator is None)
    file.resume(state)
    kept, held = split(samples, recipe, state.seed)
    with torch.enable_grad(), progress_bar(recipe.steps, "training", unit="steps", show=progress) as tick:
        tick(state.step, "")
        while state.step < recipe.steps and (recipe.patience is None or state.waited < recipe.patience):
            steps = min(recipe.check_every, recipe.steps - state.step)
            started = time.monotonic()
            with rng.for_layers_of(net, state.seed + 1 + state.step):  # a different stream from the batches
                state.advance(loss, kept, steps)
                state.evaluate(loss, held, floor)
            state.seconds += time.monotonic() - started
            last = {name: values[-1] for name, values in state.history.items()}
            tick(steps, f"loss {last['loss']:.4g}, held out {last['held_out']:.4g}, rate {last['rate']:.2g}")
            file.save(state, seconds=SAVE_SECONDS)
    file.save(state)
    net.load_state_dict(state.best)
    net.requires_grad_(False).eval()
    return Fit(net, state.history, recipe, state.seed, state.seconds, state.best_step)


def split(samples: Tensor, recipe: Recipe, seed: int) -> tuple[Tensor, Tensor]:
    """Return the samples that `train` draws batches from, and the samples that it holds out.

    Args:
        samples: All samples.
        recipe: Options of the training.
        seed: Random seed of the training.
    """
    order = torch.randperm(len(samples), generator=rng.seeded(seed, torch.device("cpu"))).to(samples.device)
    held = min(MAX_HELD_OUT_ROWS, math.ceil(recipe.held_out * len(samples)))
    if held == len(samples):
        fix = "Pass more samples."
        raise ValueError(checks.message("samples to train on and to hold out", f"{len(samples)} samples", fix))
    return samples[order[held:]], samples[order[:held]]


TIE_SHARE = 0.02  # held-out losses this close, as a fraction of the improvement since the first, count as equal
MAX_PARTS = 10  # parts of the held-out samples, whose losses give the standard error of their mean
MIN_PART_ROWS = 8


@dataclass
class State:
    """Everything that the next step of a training needs."""

    net: nn.Module
    recipe: Recipe
    seed: int
    generator: torch.Generator
    optimiser: torch.optim.Adam
    average: nn.Module
    best: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    best_step: int = 0
    least: list[float] = field(default_factory=list)  # losses of the parts at the check with the smallest mean
    waited: int = 0
    seconds: float = 0.0
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"step": [], "loss": [], "held_out": [], "rate": []}
    )

    @classmethod
    def begin(cls, net: nn.Module, recipe: Recipe, seed: int, device: torch.device) -> "State":
        """Return the state before the first step."""
        average = copy.deepcopy(net).requires_grad_(False).eval()
        net.requires_grad_(True).train()
        fused = device.type in ("cpu", "cuda")  # one loop over all weights: a quarter of the time of a step of Adam
        optimiser = torch.optim.Adam(net.parameters(), lr=recipe.rate, fused=fused)
        return cls(net, recipe, seed, rng.seeded(seed, device), optimiser, average)

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        done = self.step / self.recipe.steps
        if self.recipe.schedule == "linear":
            return self.recipe.rate * min((done + 1 / self.recipe.steps) / WARMUP_SHARE, 1.0) * (1 - done)
        return self.recipe.rate * (1.0 if self.recipe.schedule == "constant" else (1 + math.cos(math.pi * done)) / 2)

    def advance(self, loss: Loss, samples: Tensor, steps: int) -> None:
        """Make some optimiser steps."""
        totals: dict[str, Tensor] = {}
        weights: list[Tensor] = list(self.net.parameters())
        averages: list[Tensor] = list(self.average.parameters())
        shape = steps, self.recipe.batch
        for rows in torch.randint(len(samples), shape, generator=self.generator, device=samples.device):
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate()
            terms = self.terms(loss, samples[rows])
            self.optimiser.zero_grad()
            terms["loss"].backward()
            if self.recipe.clip is not None:
                nn.utils.clip_grad_norm_(weights, self.recipe.clip)
            self.optimiser.step()
            decay = min(self.recipe.average, (1 + self.step) / (10 + self.step)) if self.step else 0.0
            with torch.no_grad():
                torch._foreach_lerp_(averages, weights, 1 - decay)
            totals = {name: value.detach() + totals.get(name, 0.0) for name, value in terms.items()}
            self.step += 1
        for name, total in totals.items():
            self.history.setdefault(name, []).append(float(total) / steps)
        self.history["step"].append(float(self.step))
        self.history["rate"].append(self.rate())

    def terms(self, loss: Loss, x: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch, and its terms if it is a `DetailedLoss`."""
        if isinstance(loss, DetailedLoss):
            return loss.terms(self.net, x, progress=self.step / self.recipe.steps, generator=self.generator)
        return {"loss": loss.loss(self.net, x, generator=self.generator)}

    def evaluate(self, loss: Loss, held: Tensor, floor: float) -> None:
        """Evaluate the averaged weights on the held-out samples, and keep them if they are (as good as) the best."""
        for average, buffer in zip(self.average.buffers(), self.net.buffers(), strict=True):
            average.copy_(buffer)
        losses = self._part_losses(loss, held)
        value = statistics.fmean(losses)
        self.history["held_out"].append(value)
        for name, last in (("training", self.history["loss"][-1]), ("held-out", value)):
            if not floor <= last < math.inf:
                raise DivergenceError.at(self.step, name, last, floor, self.history)
        self.waited += 1
        if not self.least or value < statistics.fmean(self.least):
            self.least, self.waited = losses, 0
        if self._as_good_as_best(losses) or self.recipe.patience is None:
            self.best = {name: tensor.clone() for name, tensor in self.average.state_dict().items()}
            self.best_step = self.step

    def _part_losses(self, loss: Loss, held: Tensor) -> list[float]:
        """Return the losses of parts of the held-out samples, with the same random numbers every time."""
        generator = rng.seeded(0, held.device)
        parts = held.tensor_split(max(1, min(MAX_PARTS, len(held) // MIN_PART_ROWS)))
        return [float(loss.loss(self.average, part, generator=generator).detach()) for part in parts]

    def _as_good_as_best(self, losses: list[float]) -> bool:
        """Return whether the mean loss is the smallest, up to a standard error or `TIE_SHARE` of the improvement."""
        behind = [mine - best for mine, best in zip(losses, self.least, strict=True)]
        error = statistics.stdev(behind) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
        least = statistics.fmean(self.least)
        gained = self.history["held_out"][0] - least
        return statistics.fmean(losses) - least <= max(error, TIE_SHARE * gained)


class DivergenceError(RuntimeError):
    """Raised if the training diverges; has the `step`, the `loss` and the `history` so far."""

    def __init__(self, text: str, step: int, loss: float, history: dict[str, list[float]]) -> None:
        super().__init__(text)
        self.step, self.loss, self.history = step, loss, history

    @classmethod
    def at(cls, step: int, name: str, value: float, floor: float, history: dict[str, list[float]]) -> "DivergenceError":
        """Return the error for a loss called `name` that is not finite or below its floor."""
        if value < floor:
            expected, got = f"a {name} loss above {floor:.4g}", f"{value:.4g} at step {step}"
            fix = (
                "It is unbounded below if the samples have no width in some direction. Use DenoisingScoreMatching "
                "or MultilevelDenoising, or add noise to the samples."
            )
        else:
            expected, got = f"a finite {name} loss", f"{value} at step {step}"
            fix = (
                "Lower the rate, set clip, or check for outliers in the samples and for points without a finite score."
            )
        return cls(checks.message(expected, got, fix), step, value, history)


NUMBERS: dict[str, type] = {
    "seed": int,
    "step": int,
    "best_step": int,
    "waited": int,
    "least": list,
    "seconds": float,
    "history": dict,
}
EXPECTED, FIX = "a checkpoint of a training", "Pass another file, or delete this one to train from the beginning."


@dataclass
class Checkpoint:
    """A file with the state of one training."""

    path: Path | None
    header: dict[str, Any]
    probe: Probe
    any_seed: bool
    written: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        """Raise an error if the path is a folder."""
        if self.path is not None:
            require_file(self.path)

    def save(self, state: State, *, seconds: float = 0.0) -> None:
        """Write the state of a training, if this many seconds have passed since the last time."""
        if self.path is None or time.monotonic() - self.written < seconds:
            return
        flat = {f"{part}.{name}": t for part, tensors in _tensors(state).items() for name, t in tensors.items()}
        numbers = {name: getattr(state, name) for name in NUMBERS}
        parts = {"header": self.header, "numbers": numbers, "probe": self.probe.to_json()}
        save_tensors(self.path, flat, {name: json.dumps(part) for name, part in parts.items()})
        self.written = time.monotonic()

    def resume(self, state: State) -> None:
        """Load the training from the file into the state, if the file exists and holds the same training."""
        if self.path is None or not self.path.exists():
            return
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in _tensors(state)}
        with reading(self.path, EXPECTED, FIX) as file:
            found, numbers, probe = (json.loads(file.metadata[name]) for name in ("header", "numbers", "probe"))
            for key, tensor in file.tensors.items():
                part, name = key.split(".", 1)
                parts[part][name] = tensor
            known, found["seed"] = Probe.from_json(probe), numbers["seed"]
            _require_numbers(numbers)
        same = {key: value for key, value in self.header.items() if key != "versions"}
        seed = {} if self.any_seed else {"seed": state.seed}
        require_same(same | seed, found, self.path, "training", "file")
        self.probe.require_same(
            known,
            f"{self.path} to hold this training",
            "a training whose score, proposal or support returns other values",
            "Use another file, or delete this one to begin again.",
        )
        with naming(self.path, EXPECTED, FIX):
            _restore(state, parts, numbers)


def _require_numbers(numbers: dict[str, Any]) -> None:
    """Raise an error unless the numbers of a state have the expected types."""
    values = [value for name in ("step", "loss", "held_out", "rate") for value in numbers["history"][name]]
    values += numbers["least"]
    if not all(isinstance(numbers[name], kind) for name, kind in NUMBERS.items()) or set(numbers) != set(NUMBERS):
        raise TypeError("numbers of the wrong type")
    if not all(isinstance(value, float) for value in values):
        raise TypeError("a history with entries that are not numbers")


def _tensors(state: State) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a state, by part."""
    moments = state.optimiser.state_dict()["state"]
    return {
        "net": state.net.state_dict(),
        "average": state.average.state_dict(),
        "best": state.best,
        "adam": {f"{i}.{name}": value for i, values in moments.items() for name, value in values.items()},
        "generator": {"state": state.generator.get_state()},
    }


def _restore(state: State, parts: dict[str, dict[str, Tensor]], numbers: dict[str, Any]) -> None:
    """Load tensors and numbers into a state."""
    state.net.load_state_dict(parts["net"])
    state.average.load_state_dict(parts["average"])
    state.best = parts["best"]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["adam"].items():
        moments.setdefault(int(name.split(".")[0]), {})[name.split(".", 1)[1]] = value
    groups = state.optimiser.state_dict()["param_groups"]
    state.optimiser.load_state_dict({"state": moments, "param_groups": groups})
    state.generator.set_state(parts["generator"]["state"])
    for name, value in numbers.items():
        setattr(state, name, value)


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and scoremh, to be written into a file."""
    return {"python": platform.python_version(), "torch": torch.__version__, "scoremh": version("scoremh")}


def _read(path: str | Path, kind: str, net: nn.Module | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the fields of a saved fit of this kind, and its tensors other than weights."""
    with reading(path, f"a file that {kind}.save wrote", "Pass such a file, or fit again.") as (metadata, tensors):
        _require_kind(metadata, path, kind)
        fields = json.loads(metadata[f"scoremh.{kind}"])
        weights = {name.removeprefix("net."): tensors.pop(name) for name in list(tensors) if name.startswith("net.")}
        with within_budget(fields["net"], weights):
            network = networks.build(fields["net"], net, path)
        network.to(next((tensor.dtype for tensor in weights.values() if tensor.is_floating_point()), None))
        _load_weights(network, weights, path)
        del fields["versions"]
        return fields | {"net": network, "recipe": Recipe(**fields["recipe"])}, tensors


def _load_weights(network: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        fix = "Build the network with the same arguments as for the fit."
        got = f"a different one ({' '.join(str(error).split())})"
        raise ValueError(checks.message(f"a net with the weights of {path}", got, fix)) from error
    network.requires_grad_(False).eval()


def _require_kind(metadata: Mapping[str, str], path: str | Path, kind: str) -> None:
    """Raise an error if the file holds another kind of fit."""
    for name in (key.removeprefix("scoremh.") for key in metadata if key.startswith("scoremh.")):
        if name != kind:
            got = f"{path}, which {name}.save wrote"
            raise ValueError(checks.message(f"a file that {kind}.save wrote", got, f"Use {name}.load."))


# Numbers that building a network allocates besides its weights: frequencies, and temporary ones for initialisation.
SPARE_NUMBERS, EXPANSION = 100_000, 10


class _Budget(TorchDispatchMode):
    """Count the numbers that torch allocates, and raise an error before there are too many."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.made = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not any(isinstance(arg, Tensor) for arg in args):
            sizes = args[0] if args and isinstance(args[0], list | tuple) else [n for n in args if isinstance(n, int)]
            self.made += math.prod(sizes)
            if self.made > self.most:
                raise ValueError(f"a network of more than {self.most:,} numbers")
        return func(*args, **(kwargs or {}))


@contextmanager
def within_budget(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise an error if the network built inside the block is far larger than the saved weights."""
    size = sum(weight.numel() for weight in weights.values())
    most = EXPANSION * size + SPARE_NUMBERS
    if (largest := max(_whole_numbers(description), default=0)) > most:
        raise ValueError(f"the number {largest:,} in the description of a network of {size:,} weights")
    with _Budget(most):
        yield


def _whole_numbers(part: Any) -> Iterator[int]:
    """Yield all whole numbers in a JSON value."""
    if isinstance(part, Mapping | list):
        for inner in part.values() if isinstance(part, Mapping) else part:
            yield from _whole_numbers(inner)
    elif isinstance(part, int):
        yield part

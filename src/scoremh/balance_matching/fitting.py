"""Training an acceptance function: defaults by form, the paper's settings, and `fit_acceptance`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from scoremh._shared import checks, rng
from scoremh._shared.transition import with_score
from scoremh.balance_matching.loss import BalanceMatching
from scoremh.balance_matching.trial import try_network, try_out
from scoremh.coordinates import Affine, Coordinates
from scoremh.networks import AcceptanceMLP, Antisymmetric, Form, Free, InputsInCoordinates, Potential, PotentialMLP
from scoremh.networks.pairs import MadeFor
from scoremh.training import Fit, Recipe, load_fit, save_fit, train
from scoremh.types import Proposal, Target, TargetLike

FormName = Literal["free", "antisymmetric", "potential"]
FORMS: Mapping[str, type[Form]] = {"free": Free, "antisymmetric": Antisymmetric, "potential": Potential}
RECIPE = Recipe(4000, batch=256, rate=4e-3)  # larger steps than a score's: a pair has 2 d numbers to learn from
# First logit of a free form. Where log a is near 0 it is flat, and a form that begins there may never learn: it begins
# at a = 0.007 instead, where log a is the logit itself, and its scale is pulled up as it learns.
LOW = -5.0
PROBED, TRIED = 6, 32  # samples at which a proposal is probed, and tried out
# A potential serves every proposal: it learns from points half way to proposals, nearer to where chains are.
MATCHING: Mapping[str, BalanceMatching] = {
    "free": BalanceMatching(scale=1.0),
    "antisymmetric": BalanceMatching(),
    "potential": BalanceMatching(pairs="independent", alpha=0.5),
}


class Preset(NamedTuple):
    """A row of the paper's Table 3: the free form, all pairs, Adam at a constant rate, nothing standardised.

    The paper gives neither the size of a batch nor C. An epoch of its Algorithm 2 is one step, here on 16 x 16 pairs,
    and nothing is clipped.
    """

    hidden: int
    blocks: int
    steps: int
    entropy: float
    rate: float = 5e-4

    def network(self, event: tuple[int, ...], generator: torch.Generator | None = None) -> AcceptanceMLP:
        """Make the row's network."""
        with rng.weights(generator):
            return AcceptanceMLP(event, self.hidden, self.blocks)

    @property
    def matching(self) -> BalanceMatching:
        """The row's loss."""
        return BalanceMatching(self.entropy, pairs="independent", all_pairs=True)

    @property
    def recipe(self) -> Recipe:
        """The row as a recipe: no averaging, no clipping, no early stop."""
        options = {"batch": 32, "schedule": "constant", "average": 0.0, "clip": None, "patience": None}
        return Recipe(self.steps, rate=self.rate, check_every=min(200, self.steps), **options)  # type: ignore[arg-type]


PRESETS = {
    "moons": Preset(256, 3, 1000, 2.0),
    "pinwheel": Preset(256, 4, 200, 2.0),
    "s_curve": Preset(512, 4, 200, 2.0),
    "swiss_roll": Preset(512, 4, 200, 1.0),
}


@dataclass(eq=False, repr=False)
class AcceptanceFit(Fit):
    """A learned acceptance function. `Learned(fit)` is the rule it makes.

    Args:
        net: A `Free`, `Antisymmetric` or `Potential` form, in the coordinates of the samples.
        history: From "step", "loss", "held_out", "rate", and the terms of `BalanceMatching`, to a number per look.
        recipe: How it was trained.
        seed: Of the training's own generator.
        seconds: Time it took.
        best: Step whose weights these are.
        loss: What was minimised, as text.
        proposal: What it was trained with, as text.
    """

    net: Form
    loss: str
    proposal: str

    def __repr__(self) -> str:
        """Say what was learned, for which proposal, how long it took, and how well it went."""
        serves = "any proposal, trained with" if self.net.made_for is None else "no other proposal than"
        lines = [f"{type(self.net).__name__.lower()} acceptance by {self.loss}, for {serves} {self.proposal}"]
        lines.append(super().__repr__())
        if self.net.made_for is not None:  # the pairs of a potential are no moves
            lines.append(f"mean of a(x', x) {self.history['acceptance'][-1]:.3f} over its pairs")
        if self.history["clipped"][-1]:
            lines.append(f"{self.history['clipped'][-1]:.1%} of gradients clipped")
        return "\n".join(lines)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p at x, up to a constant, as a potential has it."""
        if not isinstance(self.net, Potential):
            fix = 'Fit one with form="potential".'
            raise ValueError(checks.message("a potential", f"an acceptance of {type(self.net).__name__} form", fix))
        checks.events(x)
        with checks.explained():
            return self.net.log_density(x)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whose header says in JSON what was fitted and how."""
        save_fit(self, path, {"loss": self.loss, "proposal": self.proposal}, {})

    @classmethod
    def load(cls, path: str | Path, net: nn.Module | None = None) -> "AcceptanceFit":
        """Read what `save` wrote; no code in the file is run.

        Args:
            path: The file.
            net: A network like the one that was fitted, where that was not one of `scoremh.networks`.
        """
        fields, _ = load_fit(path, cls.__name__, net)
        return cls(**fields)


@dataclass(frozen=True)
class _Bound:
    """The loss for one target and one proposal, as `train` takes it."""

    matching: BalanceMatching
    target: Target
    proposal: Proposal
    coordinates: Coordinates | None
    problem: str  # numbers of the proposal, the score and the support: a checkpoint belongs to one problem

    def __repr__(self) -> str:
        return f"{self.matching} for {checks.steady(self.proposal)}, {self.problem}"

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        options = {"coordinates": self.coordinates, "progress": progress, "generator": generator}
        return self.matching.terms(net, self.target, self.proposal, x, **options)  # type: ignore[arg-type]

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Judge: without the graph of the gradients, and without crossing thousands of held-out samples."""
        judge = replace(self, matching=replace(self.matching, all_pairs=False))
        with torch.no_grad():
            return judge.terms(net, x, progress=1.0, generator=generator)["loss"]


def fit_acceptance(
    target: TargetLike,
    proposal: Proposal,
    samples: Tensor,
    *,
    form: FormName | None = None,
    matching: BalanceMatching | None = None,
    net: nn.Module | None = None,
    preset: str | None = None,
    standardize: bool = True,
    recipe: Recipe | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> AcceptanceFit:
    """Learn when to accept: an acceptance function under which a proposal is in detailed balance with a score.

    Args:
        target: Has the score, and the support outside of which no pair counts.
        proposal: q. Free and antisymmetric forms need a `log_prob` without jumps that autograd can differentiate, and
            steps that can be taken back.
        samples: `(sample, *event)`, of the law the score belongs to; those outside the support are left out.
        form: "free" (the paper's), "antisymmetric" or "potential", which is the default.
        matching: The loss and its pairs; `balance_matching.MATCHING[form]` if None. To change one setting:
            `dataclasses.replace(MATCHING["free"], clip=10.0)`.
        net: `net(proposed, current)` for log a (free) or for half of the log ratio (antisymmetric), `net(x)` for a
            potential, trained in place; one for the form if None.
        preset: A row of the paper's Table 3 by name, instead of form, matching, net, standardize and recipe.
        standardize: Let the network see coordinates in which the samples have mean 0 and unit covariance.
        recipe: How to train; `balance_matching.RECIPE` if None.
        generator: Source of randomness; also of the first weights of a network made here.
        progress: Show a progress bar.
        checkpoint: A file from which the same call goes on if it was interrupted.

    Returns:
        The acceptance function, for `Learned`.

    Example:
        >>> import torch
        >>> from scoremh import Learned, RandomWalk, Recipe, fit_acceptance, metropolis_hastings, targets
        >>> g, law = torch.Generator().manual_seed(0), targets.Gaussian([0.0, 0.0])
        >>> x, short = law.sample(1000, generator=g), Recipe(steps=20, check_every=10)
        >>> fit = fit_acceptance(law, RandomWalk(1.0), x, form="antisymmetric", recipe=short, generator=g)
        >>> kernel = metropolis_hastings(law, RandomWalk(1.0), Learned(fit, balance="metropolis"))
    """
    known = with_score(target, proposal)
    assert known.score is not None
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    if form is not None:
        checks.one_of(form, get_args(FormName), "form")
    for part, kind, name in (
        (matching, BalanceMatching, "matching"),
        (net, nn.Module, "net"),
        (recipe, Recipe, "recipe"),
    ):
        if part is not None:
            checks.kind(part, kind, f"{name} to be a {kind.__name__}", f"Leave {name} out for a good choice.")
    if known.support is not None:
        samples = samples[checks.inside(known.support(samples), samples)]
    if len(samples) < PROBED:
        got, fix = f"{len(samples)}", "Thousands are needed for an acceptance one can trust."
        raise ValueError(checks.message(f"at least {PROBED} samples inside the support", got, fix))
    event = tuple(samples.shape[1:])
    if preset is not None:
        row = _row(preset, form, matching, net, recipe)
        matching, net, standardize, recipe = row.matching, row.network(event, generator), False, row.recipe
    form = form or ("potential" if preset is None else "free")
    matching = MATCHING[form] if matching is None else matching
    if form != "free" and (matching.entropy or matching.scale):
        got, fix = f"{matching} with form={form!r}", "Leave them out: the scale of this form is not free."
        raise ValueError(checks.message('entropy and scale with form="free" alone', got, fix))
    if net is None:
        if form == "potential":
            with rng.weights(generator):
                net = PotentialMLP(event)
        else:
            net = pair_network(form, event, hidden=128, blocks=2, generator=generator)
    net.to(samples)
    try_out(known, proposal, samples[:TRIED], differentiate=form != "potential")
    standard = Affine.whitening(samples) if standardize else None
    inputs = net if standard is None else InputsInCoordinates(net, standard)
    made_for = MadeFor.of(known, proposal, samples)
    whole = FORMS[form](inputs, None if form == "potential" else made_for)
    try_network(whole, samples[:100])
    bound = _Bound(
        matching,
        known,
        proposal,
        standard,
        f"with {_rounded(made_for.probe)}, {_rounded(known.score(samples[:4]))} and {_reach(known, samples)}",
    )
    recipe = RECIPE if recipe is None else recipe
    fit = train(whole, bound, samples, recipe=recipe, generator=generator, progress=progress, checkpoint=checkpoint)
    return AcceptanceFit(**vars(fit), loss=checks.named(bound.matching), proposal=checks.named(proposal))


def pair_network(
    form: FormName, event: tuple[int, ...], hidden: int, blocks: int, *, generator: torch.Generator | None = None
) -> AcceptanceMLP:
    """Make the network of a free or antisymmetric form, a free one at its first logit."""
    with rng.weights(generator):
        net = AcceptanceMLP(event, hidden, blocks)
    if form == "free":
        nn.init.constant_(net.last.bias, LOW)
    return net


def _rounded(numbers: Tensor | list[float]) -> list[float]:
    few = torch.as_tensor(numbers).detach().double().flatten()
    return [float(f"{number:.3g}") for number in few[:: max(1, len(few) // 8)].tolist()]


def _reach(target: Target, samples: Tensor) -> list[int]:
    """Return how many samples are inside the support when they are moved away from their mean: what tells it apart."""
    mean = samples.mean(0)
    places = (mean + factor * (samples - mean) for factor in (1.0, 1.2, 1.5, 2.0, 4.0))
    return [len(samples) if target.support is None else int(target.support(place).sum()) for place in places]


def _row(
    preset: str,
    form: FormName | None,
    matching: BalanceMatching | None,
    net: nn.Module | None,
    recipe: Recipe | None,
) -> Preset:
    checks.one_of(preset, tuple(PRESETS), "preset")
    if form not in (None, "free") or matching is not None or net is not None or recipe is not None:
        fix = (
            f"Leave the preset out, and start from scoremh.balance_matching.PRESETS[{preset!r}], without its entropy "
            "for other forms than the free one."
        )
        got = "a preset with a form, a matching, a net or a recipe"
        raise ValueError(checks.message("a preset alone", got, fix))
    return PRESETS[preset]

"""What `fit_acceptance` will train, and how: every default chosen, every argument checked."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from scoremh import diffusion
from scoremh._shared import checks, rng
from scoremh._shared.probe import Probe
from scoremh._shared.transition import scored_target
from scoremh.balance_matching.anchors import TABLE_PAIRS, Anchors
from scoremh.balance_matching.losses import BalanceMatching
from scoremh.balance_matching.presets import PRESETS, RECIPE, FormName, default_matching
from scoremh.balance_matching.trial import try_anchors, try_network, try_proposal
from scoremh.coordinates import Affine, Coordinates
from scoremh.networks import FORMS, Form, InputsInCoordinates
from scoremh.networks.proposal_probe import PROBED_SAMPLES, ProposalProbe
from scoremh.training import Recipe, plan_text
from scoremh.types import LogDensityFn, Proposal, Target, TargetLike

TRIED_SAMPLES = 32  # at which a proposal is tried
TRIED_PAIRS = 100  # with which a network is tried
COUNTED_SAMPLES = 900  # that a support is asked for: one more or less is beyond the tolerance of a probe
STRETCHES = (1.0, 1.2, 1.5, 2.0, 4.0)  # by which samples are moved away from their mean, to tell supports apart


@dataclass(frozen=True)
class MatchedLoss:
    """The loss for one target and one proposal, as `train` takes it."""

    matching: BalanceMatching
    target: Target
    proposal: Proposal
    coordinates: Coordinates | None
    probe: Probe
    anchors: Anchors | None = None

    def __repr__(self) -> str:
        """Show the loss and the proposal, the same in every process."""
        anchored = "" if self.anchors is None else f", with {len(self.anchors)} pairs of anchors"
        return f"{self.matching} for {checks.steady(self.proposal)}{anchored}"

    def anchored(self, anchors: Anchors) -> "MatchedLoss":
        """Return the loss with anchors, which tell it from others as well."""
        return replace(self, anchors=anchors, probe=self.probe.joined(Probe.of(anchors.log_density)))

    def terms(
        self, net: nn.Module, x: Tensor, *, progress: float, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return the loss of a batch and its terms."""
        terms = self.matching.terms(
            net,
            self.target,
            self.proposal,
            x,
            coordinates=self.coordinates,
            progress=progress,
            generator=generator,
        )
        if self.anchors is None:
            return terms
        error = self.anchors.loss(Form.of(net), generator=generator)
        return terms | {"loss": terms["loss"] + self.matching.anchor_weight * error, "anchors": error.detach()}

    def loss(self, net: nn.Module, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the held-out loss: without the graph of the gradients, and without crossing thousands of samples."""
        held_out = None if self.anchors is None else replace(self.anchors, held_out=True)
        judge = replace(self, matching=replace(self.matching, all_pairs=False), anchors=held_out)
        with torch.no_grad():
            return judge.terms(net, x, progress=1.0, generator=generator)["loss"]


@dataclass(frozen=True, eq=False)
class AcceptancePlan:
    """What to train. Printing it shows all that was chosen.

    Args:
        form: The acceptance function, with its first weights.
        loss: Loss for the target and the proposal.
        recipe: How to train.
        samples: Samples inside the support, `(sample, *event)`.
        anchors: The function x -> log p(x) whose values join the loss, or None.
    """

    form: Form
    loss: MatchedLoss
    recipe: Recipe
    samples: Tensor = field(repr=False)
    anchors: LogDensityFn | None = None

    def __str__(self) -> str:
        """Show the plan in a few lines."""
        what, inside = f"{type(self.form).__name__.lower()} acceptance", self.form.net
        net = inside.net if isinstance(inside, InputsInCoordinates) else inside
        text = plan_text(what, net, self.loss, self.loss.coordinates, self.samples, self.recipe)
        return text if self.anchors is None else f"{text}\n  anchors: log p at up to {2 * TABLE_PAIRS:,} points"


def acceptance_plan(
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
    anchors: LogDensityFn | bool | None = False,
    generator: torch.Generator | None = None,
) -> AcceptancePlan:
    """Return what `fit_acceptance` would train with these arguments, which are its own."""
    known = scored_target(target, proposal)
    samples = _validated_samples(known, samples)
    _require_kinds(form, matching, net, recipe)
    event = tuple(samples.shape[1:])
    if preset is not None:
        _require_preset_alone(preset, form, matching, net, recipe)
        row = PRESETS[preset]
        form, matching, standardize, recipe = "free", row.matching, False, row.recipe
        net = row.network(event, generator)
    form, values = form or "potential", _anchor_function(anchors, known)
    matching = matching or default_matching(form, event, anchored=values is not None)
    _require_own_terms(form, matching)
    net = FORMS[form].network(event, generator=rng.child(generator)) if net is None else net
    net.to(samples)
    try_proposal(known, proposal, samples[:TRIED_SAMPLES], differentiate=FORMS[form].one_proposal)
    coordinates = Affine.whitening(samples) if standardize else None
    made_for = ProposalProbe.of(known, proposal, samples) if FORMS[form].one_proposal else None
    whole = FORMS[form](net if coordinates is None else InputsInCoordinates(net, coordinates), made_for)
    try_network(whole, type(net), samples[:TRIED_PAIRS])
    if values is not None:
        try_anchors(values, samples[:TRIED_SAMPLES])
    loss = MatchedLoss(matching, known, proposal, coordinates, problem_probe(known, proposal, samples))
    return AcceptancePlan(whole, loss, recipe or RECIPE, samples, values)


def problem_probe(target: Target, proposal: Proposal, samples: Tensor) -> Probe:
    """Return numbers of the proposal, the score and the support: a checkpoint belongs to one problem."""
    assert target.score is not None
    log_q = ProposalProbe.of(target, proposal, samples).probe
    few = samples[:COUNTED_SAMPLES]
    stretched = (few.mean(0) + stretch * (few - few.mean(0)) for stretch in STRETCHES)
    counts = [len(few) if target.support is None else int(target.support(x).sum()) for x in stretched]
    return log_q.joined(Probe.of(target.score(samples[:4]), torch.tensor(counts)))


def _validated_samples(target: Target, samples: Tensor) -> Tensor:
    """Return the samples inside the support, refused where they are too few."""
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    if target.support is not None:
        samples = samples[checks.inside(target.support(samples), samples)]
    if len(samples) < PROBED_SAMPLES:
        got, fix = f"{len(samples)}", "Thousands are needed for an acceptance one can trust."
        raise ValueError(checks.message(f"at least {PROBED_SAMPLES} samples inside the support", got, fix))
    return samples


def _anchor_function(anchors: LogDensityFn | bool | None, target: Target) -> LogDensityFn | None:
    """Return the function x -> log p(x) of the anchors, through noise where they are True; None for False."""
    if anchors is False:
        return None
    if anchors is None:
        fix = "A score of one noise level knows no log p; leave anchors out to train on gradients alone."
        raise ValueError(checks.message("anchors to be a function of x, True or False", "None", fix))
    if anchors is not True:
        return anchors
    if target.levels is None:
        fix = "Pass a function x -> log p(x), or what fit_score returns as the target."
        got = "a score of one level, or a product"
        raise ValueError(checks.message("a target that knows the scores of all noise levels", got, fix))
    return diffusion.LogDensity(target.levels)


def _require_kinds(
    form: str | None, matching: BalanceMatching | None, net: nn.Module | None, recipe: Recipe | None
) -> None:
    """Refuse arguments of another kind than they should be."""
    if form is not None:
        checks.one_of(form, tuple(FORMS), "form")
    checks.optional(matching, BalanceMatching, "matching")
    checks.optional(net, nn.Module, "net")
    checks.optional(recipe, Recipe, "recipe")


def _require_own_terms(form: str, matching: BalanceMatching) -> None:
    """Refuse terms of the loss that belong to another form."""
    if not FORMS[form].free_scale and (matching.entropy or matching.scale):
        got, fix = f"{matching} with form={form!r}", "Leave them out: the scale of this form is not free."
        raise ValueError(checks.message('entropy and scale with form="free" alone', got, fix))


def _require_preset_alone(
    preset: str, form: str | None, matching: BalanceMatching | None, net: nn.Module | None, recipe: Recipe | None
) -> None:
    """Refuse an unknown preset, and one with what it stands for."""
    checks.one_of(preset, tuple(PRESETS), "preset")
    if form not in (None, "free") or matching is not None or net is not None or recipe is not None:
        fix = (
            f"Leave the preset out, and start from scoremh.balance_matching.PRESETS[{preset!r}], without its entropy "
            "for other forms than the free one."
        )
        got = "a preset with a form, a matching, a net or a recipe"
        raise ValueError(checks.message("a preset alone", got, fix))

r"""`fit_acceptance`: an acceptance function from a score, by Score Balance Matching.

It chooses the form, the loss, the coordinates and the network that are not given, tries target, proposal and network
at a few samples before a training is spent on them, and trains. The loss is in `balance_matching.losses`.

Anchors are values of log p that join the gradients. Gradients say nothing of the weights of modes that no path of
accurate scores connects; values do. For a pair (x, x')

    e = D_a(x', x) - [log p(x') - log p(x)] - [log q(x | x') - log q(x' | x)]

and the term is the mean of Huber's loss of e. The pairs are those that a chain may propose: x' comes from q(. | x), or,
for a potential, which serves every proposal, from the whole table. The points are samples, samples moved by noise of
all sizes, points on lines between samples, points all around, and candidates from all of these: with samples alone,
nothing keeps a network from putting mass elsewhere.

Below a floor log p is bounded and not learned: between a point above the floor and one below it log p has to change by
at least as much as it does to the floor; a pair with both points below it does not count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from scoremh import diffusion
from scoremh._shared import checks, rng
from scoremh._shared.algebra import gauss_legendre, inner, line, per_chain, rows_finite, weighted_sum, whole_way
from scoremh._shared.probe import Probe
from scoremh._shared.progress import progress_bar
from scoremh.balance_matching.losses import BalanceMatching
from scoremh.coordinates import Affine, Coordinates
from scoremh.kernel.metropolis import scored_target
from scoremh.networks import FORMS, Form, InputsInCoordinates
from scoremh.networks.acceptance import PROBED_SAMPLES, ProposalProbe, leaf
from scoremh.training import Fit, Recipe, train
from scoremh.types import LogDensityFn, Point, Proposal, Target, TargetLike

FormName = Literal["free", "antisymmetric", "potential"]  # the names of `networks.FORMS`
# A potential serves every proposal: it learns from points half way to proposals, nearer to where chains are.
MATCHING: Mapping[str, BalanceMatching] = {
    "free": BalanceMatching(scale=1.0),
    "antisymmetric": BalanceMatching(),
    "potential": BalanceMatching(pairs="independent", alpha=0.5),
}
# With anchors: largest norm of a gradient per root of its size, in standard coordinates. Slopes are steeper off the
# samples, where a learned score is not to be trusted and would outweigh the anchors.
ANCHORED_CLIP = 2.5
RECIPE = Recipe(4000, batch=256, rate=4e-3)  # larger steps than a score's: a pair has 2 d numbers to learn from
TRIED_SAMPLES = 32  # at which a proposal is tried
TRIED_PAIRS = 100  # with which a network is tried
COUNTED_SAMPLES = 900  # that a support is asked for: one more or less is beyond the tolerance of a probe
STRETCHES = (1.0, 1.2, 1.5, 2.0, 4.0)  # by which samples are moved away from their mean, to tell supports apart


@dataclass(eq=False, repr=False)
class AcceptanceFit(Fit):
    """A learned acceptance function. `Learned(fit)` is the rule it makes.

    Args:
        net: A `Free`, `Antisymmetric` or `Potential` form, called with samples.
        history: From "step", "loss", "held_out", "rate", and the terms of `BalanceMatching`, to a number per check of
            the held-out loss.
        recipe: How it was trained.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Time it took.
        best: Step whose weights these are.
        loss: What was minimised, as text.
        proposal: Proposal it was trained with, as text.
    """

    own_fields: ClassVar[tuple[str, ...]] = ("loss", "proposal")

    net: Form
    loss: str
    proposal: str

    def __repr__(self) -> str:
        """Show what was learned, for which proposal, how long it took, and how well it went."""
        serves = "no other proposal than" if self.net.one_proposal else "any proposal, trained with"
        lines = [f"{type(self.net).__name__.lower()} acceptance by {self.loss}, for {serves} {self.proposal}"]
        lines.append(super().__repr__())
        if self.net.one_proposal:  # else its pairs are no moves
            lines.append(f"mean of a(x', x) {self.history['acceptance'][-1]:.3f} over its pairs")
        if self.history["clipped"][-1]:
            lines.append(f"{self.history['clipped'][-1]:.1%} of gradients clipped")
        if errors := self.history.get("anchors"):
            lines.append(f"mean loss of log p at anchors {errors[-1]:.3g}")
        return "\n".join(lines)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p at x, up to a constant, as a potential has it."""
        potential = self.net.potential
        if potential is None:
            fix = 'Fit one with form="potential".'
            raise ValueError(checks.message("a potential", f"an acceptance of {type(self.net).__name__} form", fix))
        checks.events(x)
        with checks.explained():
            return potential(x)


def fit_acceptance(
    target: TargetLike,
    proposal: Proposal,
    samples: Tensor,
    *,
    form: FormName | None = None,
    matching: BalanceMatching | None = None,
    net: nn.Module | None = None,
    standardize: bool = True,
    recipe: Recipe | None = None,
    anchors: LogDensityFn | bool | None = False,
    generator: torch.Generator | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> AcceptanceFit:
    """Learn when to accept: an acceptance function under which a proposal is in detailed balance with a score.

    Args:
        target: Target with a score; pairs outside its support do not count.
        proposal: q. Free and antisymmetric forms need a `log_prob` without jumps that autograd can differentiate, and
            reversible steps: q(x | x') > 0 where q(x' | x) > 0.
        samples: Samples of the target, `(sample, *event)`; those outside the support are left out.
        form: "free" (the paper's), "antisymmetric" or "potential", which is the default.
        matching: The loss and its pairs; `balance_matching.MATCHING[form]` if None, with anchors clipped at 2.5 times
            the root of the number of coordinates of a pair. To change one setting:
            `dataclasses.replace(MATCHING["free"], clip=10.0)`.
        net: `net(proposed, current)` for log a (free) or for half of the log ratio (antisymmetric), `net(x)` for a
            potential, trained in place; one for the form if None.
        standardize: Whether the network sees coordinates in which the samples have mean 0 and unit covariance.
        recipe: How to train; `balance_matching.RECIPE` if None.
        anchors: Function x -> log p(x), up to a constant, such as `fit.log_density` of a learned score, or True for
            log p through noise of a target that knows noise levels: its values at thousands of points on, between and
            around the samples join the loss, with the weight `matching.anchor_weight`. Gradients alone leave the
            weights of modes open that lie far from each other.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The acceptance function, for `Learned`.

    Example:
        >>> import torch
        >>> from scoremh import Learned, RandomWalk, Recipe, fit_acceptance, metropolis_hastings, targets
        >>> g, normal = torch.Generator().manual_seed(0), targets.Gaussian([0.0, 0.0])
        >>> x, short = normal.sample(1000, generator=g), Recipe(steps=20, check_every=10)
        >>> fit = fit_acceptance(normal, RandomWalk(1.0), x, form="antisymmetric", recipe=short, generator=g)
        >>> kernel = metropolis_hastings(normal, RandomWalk(1.0), Learned(fit, balance="metropolis"))
    """
    known = scored_target(target, proposal)
    samples = _samples_inside(known, samples)
    form = "potential" if form is None else form
    checks.one_of(form, tuple(FORMS), "form")
    checks.optional(matching, BalanceMatching, "matching")
    checks.optional(net, nn.Module, "net")
    checks.optional(recipe, Recipe, "recipe")
    kind, log_density = FORMS[form], anchor_function(anchors, known)
    if matching is None:
        clip = None if log_density is None else ANCHORED_CLIP * math.sqrt(2 * samples[0].numel())
        matching = replace(MATCHING[form], clip=clip)
    if not kind.free_scale and (matching.entropy or matching.scale):
        got, fix = f"{matching} with form={form!r}", "Leave them out: the scale of this form is not free."
        raise ValueError(checks.message('entropy and scale with form="free" alone', got, fix))

    net = kind.network(tuple(samples.shape[1:]), generator=rng.child(generator)) if net is None else net
    net.to(samples)
    try_proposal(known, proposal, samples[:TRIED_SAMPLES], differentiate=kind.one_proposal)
    coordinates = Affine.whitening(samples) if standardize else None
    made_for = ProposalProbe.of(known, proposal, samples) if kind.one_proposal else None
    whole = kind(net if coordinates is None else InputsInCoordinates(net, coordinates), made_for)
    try_network(whole, type(net), samples[:TRIED_PAIRS])

    loss = MatchedLoss(matching, known, proposal, coordinates, problem_probe(known, proposal, samples))
    if log_density is not None:
        try_anchors(log_density, samples[:TRIED_SAMPLES])
        table = anchor_table(log_density, known, proposal, samples, whole, progress=progress)
        loss = replace(loss, anchors=table, probe=loss.probe.joined(Probe.of(table.log_density)))
    fit = train(
        whole,
        loss,
        samples,
        recipe=recipe or RECIPE,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
    )
    return AcceptanceFit(
        net=whole,
        history=fit.history,
        recipe=fit.recipe,
        seed=fit.seed,
        seconds=fit.seconds,
        best=fit.best,
        loss=checks.named(matching),
        proposal=checks.named(proposal),
    )


def _samples_inside(target: Target, samples: Tensor) -> Tensor:
    """Return the samples inside the support, refused where they are too few."""
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    if target.support is not None:
        samples = samples[checks.inside(target.support(samples), samples)]
    if len(samples) < PROBED_SAMPLES:
        got, fix = f"{len(samples)}", "Thousands are needed for an acceptance one can trust."
        raise ValueError(checks.message(f"at least {PROBED_SAMPLES} samples inside the support", got, fix))
    return samples


def anchor_function(anchors: LogDensityFn | bool | None, target: Target) -> LogDensityFn | None:
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


def problem_probe(target: Target, proposal: Proposal, samples: Tensor) -> Probe:
    """Return numbers of the proposal, the score and the support: a checkpoint belongs to one problem."""
    assert target.score is not None
    log_q = ProposalProbe.of(target, proposal, samples).probe
    few = samples[:COUNTED_SAMPLES]
    stretched = (few.mean(0) + stretch * (few - few.mean(0)) for stretch in STRETCHES)
    counts = [len(few) if target.support is None else int(target.support(x).sum()) for x in stretched]
    return log_q.joined(Probe.of(target.score(samples[:4]), torch.tensor(counts)))


TABLE_PAIRS = 8192
MIN_PAIRS = 20  # at which log p has to be a number
PAIRS_PER_STEP = 256
HELD_OUT_SHARE = 0.1  # of the pairs
TABLE_SEED = 0xA2C4  # a training that is resumed has the same points, also where no seed was given
CALL_POINTS = 2048  # at which log p is asked in one call
LEAST_NOISE, MOST_NOISE = 0.02, 2.0  # of the noise that moves samples, in units of their spread
WIDTH_AROUND = 2.0  # standard deviation of the points all around, in the same units
TAIL_SHARE, DEPTH = 0.01, 10.0  # the floor is this much below log p at all samples but this share


@dataclass(frozen=True)
class Anchors:
    """A table of pairs of points, with log p at both."""

    proposal: Proposal
    points: Point
    log_density: Float[Tensor, " point"]
    floor: float
    held_out: bool = False

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.log_density) // 2

    def loss(self, form: Form, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean loss over pairs drawn from the table."""
        pairs, device = len(self), self.log_density.device
        trained = round((1 - HELD_OUT_SHARE) * pairs)
        first, last = (trained, pairs) if self.held_out else (0, trained)
        rows = torch.randint(first, last, (2, PAIRS_PER_STEP), generator=generator, device=device)
        if form.from_points:
            rows += pairs * torch.randint(2, rows.shape, generator=generator, device=device)
        else:
            rows[1] = rows[0] + pairs
        return self.between(form, *rows)

    def between(self, form: Form, current: Int[Tensor, " pair"], proposed: Int[Tensor, " pair"]) -> Float[Tensor, ""]:
        """Return the mean loss over the pairs with these rows of points."""
        x, y = (self.points.map(lambda part, rows=rows: part[rows]) for rows in (current, proposed))
        before, after = (self.log_density[rows] for rows in (current, proposed))
        wanted = after.clamp(min=self.floor) - before.clamp(min=self.floor)
        error = form.log_density_change(x, y, proposal=self.proposal) - wanted
        error = torch.where(after < self.floor, error.clamp(min=0), error)
        error = torch.where(before < self.floor, error.clamp(max=0), error)
        asked = (before >= self.floor) | (after >= self.floor)
        return huber_loss(error, torch.zeros_like(error), reduction="sum") / asked.sum().clamp_min(1)


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


def anchor_table(
    anchors: LogDensityFn, target: Target, proposal: Proposal, samples: Tensor, form: Form, *, progress: bool = False
) -> Anchors:
    """Return a table of anchors, with log p evaluated at all its points."""
    with torch.no_grad(), checks.explained():
        current, proposed, is_sample = _pairs(target, proposal, samples)
        before, after = _values(anchors, torch.cat([current.x, proposed.x]), progress).chunk(2)
        known = (before < math.inf) & (after < math.inf)  # NaN is not
        if form.one_proposal:
            known &= proposal.log_q_ratio(current, proposed).isfinite()
        at_samples = before[is_sample & before.isfinite()]
        _require_known(known, at_samples)
        points = current.map(lambda *ends: torch.cat([end[known] for end in ends]), proposed)
        floor = float(at_samples.double().quantile(TAIL_SHARE)) - DEPTH
        return Anchors(proposal, points, torch.cat([before[known], after[known]]), floor)


def _pairs(target: Target, proposal: Proposal, samples: Tensor) -> tuple[Point, Point, Bool[Tensor, " pair"]]:
    """Return x and x' of pairs inside the support, and whether x is a sample."""
    generator = rng.seeded(TABLE_SEED, samples.device)
    x, is_sample = _points(samples, generator)
    inside = _inside(target, x)
    current = Point.at(x[inside], target, proposal.needs)
    y = proposal.sample(current, generator=generator)
    stays = _inside(target, y)
    return current.map(lambda part: part[stays]), Point.at(y[stays], target, proposal.needs), is_sample[inside][stays]


def _inside(target: Target, x: Tensor) -> Bool[Tensor, " point"]:
    """Return which points are inside the support."""
    return x.new_ones(len(x), dtype=torch.bool) if target.support is None else target.support(x)


def _points(samples: Tensor, generator: torch.Generator) -> tuple[Tensor, Bool[Tensor, " point"]]:
    """Return samples, samples with noise, points between samples and points around, in turn; and which are samples."""
    standard = Affine.whitening(samples)
    rows = torch.randint(len(samples), (2, TABLE_PAIRS), generator=generator, device=samples.device)
    u, v = standard.inverse(samples[rows.flatten()]).chunk(2)
    noise = rng.normal(tuple(u.shape), u, generator)
    share = per_chain(rng.uniform((len(u),), u, generator), u)
    size = LEAST_NOISE * (MOST_NOISE / LEAST_NOISE) ** share
    kinds = torch.stack([u, u + size * noise, torch.lerp(u, v, share), WIDTH_AROUND * noise])
    every = torch.arange(len(u), device=u.device)
    kind = every % len(kinds)
    return standard(kinds[kind, every]), kind == 0


def _values(anchors: LogDensityFn, x: Tensor, progress: bool) -> Float[Tensor, " point"]:
    """Return log p at all points."""
    parts = []
    with progress_bar(len(x), "anchors", unit="points", show=progress) as tick:
        for part in x.split(CALL_POINTS):
            parts.append(anchors(part))
            checks.returned(parts[-1], part, part.shape[:1], "anchors")
            tick(len(part))
    return torch.cat(parts)


def _require_known(known: Tensor, at_samples: Tensor) -> None:
    """Refuse log p that is a number almost nowhere."""
    if known.sum() < MIN_PAIRS or not len(at_samples):
        got = f"{int(known.sum())} of {len(known)} pairs, and finite ones at {len(at_samples)} samples"
        fix = "Pass log p itself, up to a constant; where p is 0 it may be -inf."
        raise ValueError(checks.message("anchors that are numbers at the samples and around them", got, fix))


# Two rules each: their difference says how far to trust the finer one.
ROUGH = gauss_legendre(16), gauss_legendre(8)
FINE = gauss_legendre(256), gauss_legendre(128)
CANDIDATE_SEED = 0x5C0AE  # unlikely to be that of the samples
MAX_WRONG_SHARE = 1 / 20  # of the candidates, whose gradients may not add up before a proposal is refused


def try_proposal(target: Target, proposal: Proposal, x: Tensor, *, differentiate: bool) -> None:
    """Refuse a score or a proposal with answers of a wrong shape or type, or with gradients that are not its own."""
    with checks.explained():
        at = Point.at(x, target, proposal.needs | {"score"})
    checks.returned(at.score, x, x.shape, "score")
    assert at.score is not None
    if not (finite := rows_finite(at.score)).all():
        got = f"NaN or inf at {int((~finite).sum())} of {len(x)}, the first at {checks.short(x[~finite][0].tolist())}"
        fix = "Correct the score, or give the target a support that leaves such points out."
        raise ValueError(checks.message("a score that is finite at the samples", got, fix))
    candidates = proposal.sample(at, generator=rng.seeded(CANDIDATE_SEED, x.device))
    checks.returned(candidates, x, x.shape, "proposal.sample")
    checks.returned(proposal.log_prob(at, given=at), x, x.shape[:1], "proposal.log_prob")
    if differentiate:
        _require_graph(target, proposal, x)
        _compare_gradients(target, proposal, at.map(Tensor.detach), candidates.detach())


@torch.no_grad()
def try_network(form: Form, kind: type[nn.Module], x: Tensor) -> None:
    """Refuse a network that does not answer with a number per pair, or per point."""
    _require_own_gradient(kind)
    try:
        with rng.for_layers_of(form, 0):
            answer = form(*form.inputs(x))
    except (RuntimeError, ValueError, TypeError) as error:
        fix = "net(proposed, current) answers for pairs, net(x) for a potential; check its input size and its dtype."
        expected = f"{form.call} to take {checks.describe(x)}"
        raise ValueError(checks.message(expected, f"an error: {error}", fix)) from error
    checks.returned(answer, x, x.shape[:1], "net")
    form.require_answer(answer)


@torch.no_grad()
def try_anchors(anchors: LogDensityFn, x: Tensor) -> None:
    """Refuse anchors that do not answer with a number per point."""
    if not callable(anchors):
        fix = "Pass fit.log_density, or another function that answers log p, up to a constant."
        raise TypeError(checks.message("anchors to be a function of x", checks.describe(anchors), fix))
    with checks.explained():
        checks.returned(anchors(x), x, x.shape[:1], "anchors")


def _require_own_gradient(kind: type) -> None:
    """Refuse a potential with a forward of its own and the closed form of another's gradient."""
    forward, gradient = (
        next((cls for cls in kind.__mro__ if name in vars(cls)), object) for name in ("forward", "value_and_gradient")
    )
    if gradient is not object and forward is not gradient and issubclass(forward, gradient):
        got, fix = f"that of {gradient.__name__}", "Write it too, or derive the class from torch.nn.Module."
        raise ValueError(checks.message(f"a value_and_gradient for the forward of {forward.__name__}", got, fix))


def _require_graph(target: Target, proposal: Proposal, x: Tensor) -> None:
    """Refuse a score that autograd cannot see through, where the proposal's gradient has to go through it."""
    near = x.lerp(x.roll(1, 0), 1e-3)
    if target.support is not None:
        near = near.where(per_chain(target.support(near), x), x)
    here, beside = leaf(x, target, proposal), Point.at(near, target, proposal.needs)
    for name in ("score", "log_density"):
        answer, moved = getattr(here, name), getattr(beside, name)
        if name not in proposal.needs or answer.requires_grad:
            continue
        if (answer != moved).reshape(len(x), -1).any(1).float().mean() > 0.5:  # one that is flat has no gradient
            got = "one that autograd does not see: its answer requires no gradient though x does"
            fix = (
                f"Use targets.from_log_density, or compute the {name} with create_graph=True and without torch.no_grad;"
                ' or use form="potential", which needs no gradient of it.'
            )
            expected = f"a {name} to differentiate, as {checks.named(proposal)} needs"
            raise ValueError(checks.message(expected, got, fix))


def _compare_gradients(target: Target, proposal: Proposal, at: Point, candidates: Tensor) -> None:
    """Refuse a log q whose gradient by autograd does not add up to its values: detached, without torch, or with jumps.

    log q(x | x') - log q(x' | x) is 0 where x' = x: elsewhere it is the integral of its gradient along the way there.
    """
    v = candidates - at.x
    if target.support is not None:
        rows = whole_way(target.support, at.x, v, tuple(node for rule in (*ROUGH, *FINE) for node in rule.nodes))
        at, v = at.map(lambda part: part[rows]), v[rows]
        if not len(v):
            return
    tried, name = len(v), checks.named(proposal)
    values = _along(target, proposal, at, v, (1.0,))[0][0]
    if lost := int((values == -math.inf).sum()):
        got = f"{lost} of {tried} candidates x' with q(x | x') = 0, where its gradient says nothing"
        fix = 'Use form="potential", which does not need it.'
        raise ValueError(checks.message(f"reversible steps of {name}", got, fix))
    for rules in (ROUGH, FINE):  # what looks wrong is looked at more closely
        total, other = (weighted_sum(one.weights, _along(target, proposal, at, v, one.nodes)[1]) for one in rules)
        wrong = (total - values).abs() > 0.1 + 0.05 * values.abs() + 2 * (total - other).abs()  # NaN is not
        at, v, values, total = at.map(lambda part, rows=wrong: part[rows]), v[wrong], values[wrong], total[wrong]
        if len(v) <= MAX_WRONG_SHARE * tried:
            return
    worst = (total - values).abs().argmax()
    score = ", and the score it needs," if "score" in proposal.needs else ""
    expected = f"log_prob of {name}{score} to be smooth and differentiable by autograd in both points"
    got = f"gradients that add up to {float(total[worst]):.3g} where log q changes by {float(values[worst]):.3g}"
    fix = (
        "Compute it with torch alone, without detach, torch.no_grad and jumps, from x and from what the proposal needs "
        'at both points; or use form="potential", which needs no gradient of it.'
    )
    raise ValueError(checks.message(expected, got, fix))


def _along(
    target: Target, proposal: Proposal, at: Point, v: Tensor, nodes: tuple[float, ...]
) -> tuple[Float[Tensor, "node chain"], Float[Tensor, "node chain"]]:
    """Return log q(x | x') - log q(x' | x) at x' = x + t v, and its slope in t by autograd, for all nodes t."""

    def repeated(part: Tensor) -> Tensor:
        return part.detach().repeat(len(nodes), *(1,) * (part.ndim - 1))

    here = at.map(repeated)
    with torch.enable_grad():
        there = Point.at(line(at.x, v, nodes).flatten(0, 1).requires_grad_(), target, proposal.needs)
        change = proposal.log_q_ratio(here, there)
        gradient = torch.zeros_like(there.x)
        if change.requires_grad:
            (gradient,) = torch.autograd.grad(change.sum(), there.x, materialize_grads=True)
    slopes = inner(gradient, repeated(v))
    return change.detach().reshape(len(nodes), len(v)), slopes.reshape(len(nodes), len(v))

r"""`fit_acceptance`: learning an acceptance function from a score, by Score Balance Matching.

It chooses the form, the loss, the coordinates and the network unless they are given; tests target, proposal and network
at a few samples; and trains the network. The loss is in `balance_matching.losses`.

Anchors are values of log p that are learned together with the gradients. Gradients do not determine the weights of
modes that no path of accurate scores connects; values do. For a pair (x, x') the error is

    e = D_a(x', x) - [log p(x') - log p(x)] - [log q(x | x') - log q(x' | x)]

and the term is the mean of Huber's loss of e. In a pair, x' is drawn from q(. | x), or, for a potential, which is valid
for every proposal, from the whole table. The points are samples, samples with noise of all sizes, points on lines
between samples, points all around, and candidates from all of these. With samples alone, a network could put mass
elsewhere.

Below a floor, log p is only bounded, not learned: between a point above the floor and one below, log p must change by
at least its difference to the floor. A pair with both points below the floor does not count.
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
# A potential is valid for every proposal. It learns from points half way to candidates, closer to the chains.
MATCHING: Mapping[str, BalanceMatching] = {
    "free": BalanceMatching(scale=1.0),
    "antisymmetric": BalanceMatching(),
    "potential": BalanceMatching(pairs="independent", alpha=0.5),
}
# With anchors: largest norm of a gradient, divided by the root of its size, in standard coordinates. Far from the
# samples, gradients are larger and a learned score is unreliable; without clipping it would outweigh the anchors.
ANCHORED_CLIP = 2.5
RECIPE = Recipe(4000, batch=256, rate=4e-3, schedule="cosine", check_every=200, patience=20)
TRIED_SAMPLES = 32  # number of samples at which a proposal is tested
TRIED_PAIRS = 100  # number of pairs with which a network is tested
COUNTED_SAMPLES = 900  # number of samples that identify a support; one more inside exceeds the tolerance of a probe
STRETCHES = (1.0, 1.2, 1.5, 2.0, 4.0)  # factors by which samples are moved away from their mean to identify supports


@dataclass(eq=False, repr=False)
class AcceptanceFit(Fit):
    """A learned acceptance function; `Learned(fit)` is the acceptance rule.

    Args:
        net: A `Free`, `Antisymmetric` or `Potential` form, in the coordinates of the samples.
        history: Lists by "step", "loss", "held_out", "rate" and the terms of `BalanceMatching`, with one number per
            check of the held-out loss.
        recipe: Options of the training.
        seed: Random seed of the training; the same seed gives the same weights.
        seconds: Duration of the training.
        best: Step at which the network had these weights.
        loss: Text that describes the loss.
        proposal: Text that describes the proposal of the training.
    """

    own_fields: ClassVar[tuple[str, ...]] = ("loss", "proposal")

    net: Form
    loss: str
    proposal: str

    def __repr__(self) -> str:
        """Show the form, the loss, the proposal, and how the training went."""
        valid = "only" if self.net.one_proposal else "any proposal, trained with"
        lines = [f"{type(self.net).__name__.lower()} acceptance by {self.loss}, for {valid} {self.proposal}"]
        lines.append(super().__repr__())
        if self.net.one_proposal:  # the pairs of a potential are not moves
            lines.append(f"mean of a(x', x) {self.history['acceptance'][-1]:.3f} over its pairs")
        if self.history["clipped"][-1]:
            lines.append(f"{self.history['clipped'][-1]:.1%} of gradients clipped")
        if errors := self.history.get("anchors"):
            lines.append(f"mean loss of log p at anchors {errors[-1]:.3g}")
        return "\n".join(lines)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p at x up to a constant; only for a potential.

        Args:
            x: Points, `(point, *event)`.
        """
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
    """Learn an acceptance function under which a proposal is in detailed balance with a score.

    Args:
        target: Target with a score; pairs outside its support do not count.
        proposal: q. Free and antisymmetric forms need a `log_prob` that is continuous and differentiable by autograd,
            and reversible steps: q(x | x') > 0 if q(x' | x) > 0.
        samples: Samples of the target, `(sample, *event)`; samples outside the support are left out.
        form: "free" (the paper's), "antisymmetric" or "potential", which is the default.
        matching: The loss and its pairs; by default `balance_matching.MATCHING[form]`, with gradients clipped at 2.5
            times the root of the number of coordinates of a pair if there are anchors. To change one setting:
            `dataclasses.replace(MATCHING["free"], clip=10.0)`.
        net: Network, trained in place: `net(proposed, current)` for log a (free) or for f in
            log r = f(x', x) - f(x, x') (antisymmetric), `net(x)` for a potential. By default, one for the form.
        standardize: Give the network coordinates in which the samples have mean 0 and unit covariance.
        recipe: Options of the training; `balance_matching.RECIPE` if None.
        anchors: Function x -> log p(x), up to a constant, such as `fit.log_density` of a learned score; or True for the
            log density of a target with noise levels, computed from its scores. The loss then includes its values at
            thousands of points on, between and around the samples, with the weight `matching.anchor_weight`. Gradients
            alone do not determine the weights of distant modes.
        generator: Random number generator; the same seed gives the same weights.
        progress: Show a progress bar.
        checkpoint: File to write checkpoints to; the same call with the same file resumes an interrupted training.

    Returns:
        The acceptance function, to be passed to `Learned`.

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
        raise ValueError(checks.message('entropy and scale with form="free" only', got, fix))

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
    """Return the samples inside the support; raise an error if there are too few."""
    checks.events(samples, "samples")
    samples = checks.to_learn_from(samples)
    if target.support is not None:
        samples = samples[checks.inside(target.support(samples), samples)]
    if len(samples) < PROBED_SAMPLES:
        got, fix = f"{len(samples)}", "A reliable acceptance function needs thousands."
        raise ValueError(checks.message(f"at least {PROBED_SAMPLES} samples inside the support", got, fix))
    return samples


def anchor_function(anchors: LogDensityFn | bool | None, target: Target) -> LogDensityFn | None:
    """Return the function x -> log p(x) for the anchors, from scores of all noise levels if True; None if False."""
    if anchors is False:
        return None
    if anchors is None:
        fix = "A score of one noise level has no log p; leave anchors out to train on gradients alone."
        raise ValueError(checks.message("anchors to be a function of x, True or False", "None", fix))
    if anchors is not True:
        return anchors
    if target.levels is None:
        fix = "Pass a function x -> log p(x), or use a fit of fit_score as the target."
        got = "a score of one level, or a product"
        raise ValueError(checks.message("a target with scores of all noise levels", got, fix))
    return diffusion.LogDensity(target.levels)


def problem_probe(target: Target, proposal: Proposal, samples: Tensor) -> Probe:
    """Return values of the proposal, the score and the support, which identify the problem of a checkpoint."""
    assert target.score is not None
    log_q = ProposalProbe.of(target, proposal, samples).probe
    few = samples[:COUNTED_SAMPLES]
    stretched = (few.mean(0) + stretch * (few - few.mean(0)) for stretch in STRETCHES)
    counts = [len(few) if target.support is None else int(target.support(x).sum()) for x in stretched]
    return log_q.joined(Probe.of(target.score(samples[:4]), torch.tensor(counts)))


TABLE_PAIRS = 8192  # number of pairs in the table of anchors
MIN_PAIRS = 20  # smallest number of pairs with a valid log p
PAIRS_PER_STEP = 256
HELD_OUT_SHARE = 0.1  # fraction of the pairs that are held out
TABLE_SEED = 0xA2C4  # fixed, so that a resumed training has the same points even without a seed
CALL_POINTS = 2048  # largest number of points in one call of log p
LEAST_NOISE, MOST_NOISE = 0.02, 2.0  # range of the noise added to samples, in units of their standard deviation
WIDTH_AROUND = 2.0  # standard deviation of the points all around, in the same units
TAIL_SHARE, DEPTH = 0.01, 10.0  # the floor is DEPTH below the TAIL_SHARE quantile of log p at the samples


@dataclass(frozen=True)
class Anchors:
    """A table of pairs of points, with log p at both points."""

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
        counted = (before >= self.floor) | (after >= self.floor)
        return huber_loss(error, torch.zeros_like(error), reduction="sum") / counted.sum().clamp_min(1)


@dataclass(frozen=True)
class MatchedLoss:
    """The loss for one target and one proposal, for `train`."""

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
        """Return the held-out loss, without a graph and without `all_pairs`, which would be thousands squared."""
        anchors = None if self.anchors is None else replace(self.anchors, held_out=True)
        held_out = replace(self, matching=replace(self.matching, all_pairs=False), anchors=anchors)
        with torch.no_grad():
            return held_out.terms(net, x, progress=1.0, generator=generator)["loss"]


def anchor_table(
    anchors: LogDensityFn, target: Target, proposal: Proposal, samples: Tensor, form: Form, *, progress: bool = False
) -> Anchors:
    """Return a table of anchors, with log p evaluated at all its points."""
    with torch.no_grad(), checks.explained():
        current, proposed, is_sample = _pairs(target, proposal, samples)
        before, after = _values(anchors, torch.cat([current.x, proposed.x]), progress).chunk(2)
        known = (before < math.inf) & (after < math.inf)  # False for NaN
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
    """Return samples, noisy samples, points between samples and points around, alternately; and which are samples."""
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
    """Raise an error if log p is valid at too few points."""
    if known.sum() < MIN_PAIRS or not len(at_samples):
        got = f"{int(known.sum())} of {len(known)} pairs, and finite values at {len(at_samples)} samples"
        fix = "Pass log p itself, up to a constant; it may be -inf if p is 0."
        raise ValueError(checks.message("anchors that are numbers at the samples and around them", got, fix))


# Pairs of rules; the difference of a pair estimates the error of its finer rule.
ROUGH = gauss_legendre(16), gauss_legendre(8)
FINE = gauss_legendre(256), gauss_legendre(128)
CANDIDATE_SEED = 0x5C0AE  # unlikely to be the seed of the samples
MAX_WRONG_SHARE = 1 / 20  # fraction of the candidates with wrong gradients above which a proposal is rejected


def try_proposal(target: Target, proposal: Proposal, x: Tensor, *, differentiate: bool) -> None:
    """Raise an error if the score or the proposal returns wrong shapes or types, or has wrong gradients."""
    with checks.explained():
        at = Point.at(x, target, proposal.needs | {"score"})
    checks.returned(at.score, x, x.shape, "score")
    assert at.score is not None
    if not (finite := rows_finite(at.score)).all():
        got = f"NaN or inf at {int((~finite).sum())} of {len(x)}, the first at {checks.short(x[~finite][0].tolist())}"
        fix = "Correct the score, or give the target a support without such points."
        raise ValueError(checks.message("a score that is finite at the samples", got, fix))
    candidates = proposal.sample(at, generator=rng.seeded(CANDIDATE_SEED, x.device))
    checks.returned(candidates, x, x.shape, "proposal.sample")
    checks.returned(proposal.log_prob(at, given=at), x, x.shape[:1], "proposal.log_prob")
    if differentiate:
        _require_graph(target, proposal, x)
        _compare_gradients(target, proposal, at.map(Tensor.detach), candidates.detach())


@torch.no_grad()
def try_network(form: Form, kind: type[nn.Module], x: Tensor) -> None:
    """Raise an error unless a network returns one number per pair (per point for a potential)."""
    _require_own_gradient(kind)
    try:
        with rng.for_layers_of(form, 0):
            output = form(*form.inputs(x))
    except (RuntimeError, ValueError, TypeError) as error:
        fix = "Use net(proposed, current) for pairs, net(x) for a potential; check its input size and its dtype."
        expected = f"{form.call} to take {checks.describe(x)}"
        raise ValueError(checks.message(expected, f"an error: {error}", fix)) from error
    checks.returned(output, x, x.shape[:1], "net")
    form.require_answer(output)


@torch.no_grad()
def try_anchors(anchors: LogDensityFn, x: Tensor) -> None:
    """Raise an error unless the anchors are a function that returns one number per point."""
    if not callable(anchors):
        fix = "Pass fit.log_density, or another function that returns log p, up to a constant."
        raise TypeError(checks.message("anchors to be a function of x", checks.describe(anchors), fix))
    with checks.explained():
        checks.returned(anchors(x), x, x.shape[:1], "anchors")


def _require_own_gradient(kind: type) -> None:
    """Raise an error if a subclass overrides `forward` but inherits `value_and_gradient`, which no longer fits."""
    forward, gradient = (
        next((cls for cls in kind.__mro__ if name in vars(cls)), object) for name in ("forward", "value_and_gradient")
    )
    if gradient is not object and forward is not gradient and issubclass(forward, gradient):
        got, fix = f"that of {gradient.__name__}", "Define it too, or derive the class from torch.nn.Module."
        raise ValueError(checks.message(f"a value_and_gradient for the forward of {forward.__name__}", got, fix))


def _require_graph(target: Target, proposal: Proposal, x: Tensor) -> None:
    """Raise an error if the proposal's gradient needs a score or log density that autograd cannot differentiate."""
    near = x.lerp(x.roll(1, 0), 1e-3)
    if target.support is not None:
        near = near.where(per_chain(target.support(near), x), x)
    here, beside = leaf(x, target, proposal), Point.at(near, target, proposal.needs)
    for name in ("score", "log_density"):
        value, moved = getattr(here, name), getattr(beside, name)
        if name not in proposal.needs or value.requires_grad:
            continue
        if (value != moved).reshape(len(x), -1).any(1).float().mean() > 0.5:  # a constant one needs no gradient
            got = "one that is detached from autograd: its value requires no gradient though x does"
            fix = (
                f"Use targets.from_log_density, or compute the {name} with create_graph=True and without torch.no_grad;"
                ' or use form="potential", which needs no gradient of it.'
            )
            expected = f"a differentiable {name}, which {checks.named(proposal)} needs"
            raise ValueError(checks.message(expected, got, fix))


def _compare_gradients(target: Target, proposal: Proposal, at: Point, candidates: Tensor) -> None:
    """Raise an error if the gradient of log q by autograd does not integrate to its values.

    log q(x | x') - log q(x' | x) is 0 at x' = x, and elsewhere the integral of its gradient along the line from x to
    x'. This fails if log q is detached, computed without torch, or discontinuous.
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
        got = f"{lost} of {tried} candidates x' with q(x | x') = 0, where log q has no gradient"
        fix = 'Use form="potential", which does not need it.'
        raise ValueError(checks.message(f"reversible steps of {name}", got, fix))
    for rules in (ROUGH, FINE):  # candidates that look wrong are checked again with more nodes
        total, other = (weighted_sum(one.weights, _along(target, proposal, at, v, one.nodes)[1]) for one in rules)
        wrong = (total - values).abs() > 0.1 + 0.05 * values.abs() + 2 * (total - other).abs()  # False for NaN
        at, v, values, total = at.map(lambda part, rows=wrong: part[rows]), v[wrong], values[wrong], total[wrong]
        if len(v) <= MAX_WRONG_SHARE * tried:
            return
    worst = (total - values).abs().argmax()
    score = ", and the score it needs," if "score" in proposal.needs else ""
    expected = f"log_prob of {name}{score} to be smooth and differentiable by autograd in both points"
    got = f"gradients that integrate to {float(total[worst]):.3g} while log q changes by {float(values[worst]):.3g}"
    fix = (
        "Compute it with torch alone, without detach, torch.no_grad or jumps, from x and the values that the proposal "
        'needs at both points; or use form="potential", which needs no gradient of it.'
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

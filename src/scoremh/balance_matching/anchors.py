r"""Anchors: values of log p that join the gradients in the loss of an acceptance.

Gradients say nothing of the weights of modes that no path of accurate scores connects; values do. For a pair (x, x')

    e = D_a(x', x) - [log p(x') - log p(x)] - [log q(x | x') - log q(x' | x)]

and the term is the mean of Huber's loss of e. The pairs are those that a chain may ask for: x' comes from q(. | x), or,
for a potential, which serves every proposal, from the whole table. The points are samples, samples moved by noise of
all sizes, points on lines between samples, points all around, and candidates from all of these: with samples alone,
nothing keeps a network from putting mass elsewhere.

Below a floor log p is bounded and not learned: between a point above the floor and one below it log p has to change by
at least as much as it does to the floor; between two points below it nothing is asked.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import huber_loss

from scoremh._shared import checks, detailed_balance, rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.progress import progress_bar
from scoremh.coordinates import Affine
from scoremh.networks import Form
from scoremh.types import LogDensityFn, Point, Proposal, Target

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
    """A table of pairs of points, with log p at both.

    Args:
        proposal: q.
        points: x of every pair, then x' of every pair, with what the proposal needs there.
        log_density: log p at the points, up to a constant; -inf is below every floor.
        floor: log p below which it is bounded and not learned.
        held_out: Whether to draw from the pairs that are kept for judging, rather than from the others.
    """

    proposal: Proposal
    points: Point
    log_density: Float[Tensor, " point"]
    floor: float
    held_out: bool = False

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.log_density) // 2

    def loss(self, form: Form, *, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Return the mean loss over pairs drawn from the table.

        Args:
            form: The acceptance function.
            generator: Random number generator; the same seed gives the same pairs.
        """
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


def anchor_table(
    anchors: LogDensityFn, target: Target, proposal: Proposal, samples: Tensor, form: Form, *, progress: bool = False
) -> Anchors:
    """Return a table of anchors, with log p evaluated at all its points.

    Args:
        anchors: x -> log p(x), up to a constant.
        target: Target; pairs outside its support are left out.
        proposal: q.
        samples: Samples inside the support, `(sample, *event)`.
        form: The acceptance function that is to learn from them.
        progress: Show a progress bar.
    """
    with torch.no_grad(), checks.explained():
        current, proposed, is_sample = _pairs(target, proposal, samples)
        before, after = _values(anchors, torch.cat([current.x, proposed.x]), progress).chunk(2)
        known = (before < math.inf) & (after < math.inf)  # NaN is not
        if form.one_proposal:
            known &= detailed_balance.log_q_ratio(proposal, current, proposed).isfinite()
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
            checks.answer(parts[-1], part, part.shape[:1], "anchors")
            tick(len(part))
    return torch.cat(parts)


def _require_known(known: Tensor, at_samples: Tensor) -> None:
    """Refuse log p that is a number almost nowhere.

    Args:
        known: Whether it is a number, or -inf, at both ends of a pair.
        at_samples: Its finite values at samples.
    """
    if known.sum() < MIN_PAIRS or not len(at_samples):
        got = f"{int(known.sum())} of {len(known)} pairs, and finite ones at {len(at_samples)} samples"
        fix = "Pass log p itself, up to a constant; where p is 0 it may be -inf."
        raise ValueError(checks.message("anchors that are numbers at the samples and around them", got, fix))

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
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import huber_loss

from scoremh._shared import checks, detailed_balance, rng
from scoremh._shared.algebra import per_chain
from scoremh._shared.progress import progress_bar
from scoremh.coordinates import Affine
from scoremh.networks import Form
from scoremh.types import LogDensityFn, Point, Proposal, Target

TABLE_PAIRS = 8192
MIN_PAIRS = 20  # that have to be left where log p is a number
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
    generator = rng.seeded(TABLE_SEED, samples.device)
    with torch.no_grad(), checks.explained():
        x = _points(samples, generator)
        real = torch.arange(len(x), device=x.device) % 4 == 0
        if target.support is not None:
            inside = target.support(x)
            x, real = x[inside], real[inside]
        start = Point.at(x, target, proposal.needs)
        y = proposal.sample(start, generator=generator)
        if target.support is not None:
            inside = target.support(y)
            start, y, real = start.map(lambda part: part[inside]), y[inside], real[inside]
        end = Point.at(y, target, proposal.needs)
        values = _values(anchors, torch.cat([start.x, end.x]), progress)
        before, after = values.chunk(2)
        numbers = (before < math.inf) & (after < math.inf)  # NaN is not
        if form.one_proposal:
            numbers &= detailed_balance.log_q_ratio(proposal, start, end).isfinite()
        _require_numbers(numbers, before[real])
        start, end = (point.map(lambda part: part[numbers]) for point in (start, end))
        tail = before[real & before.isfinite()].quantile(TAIL_SHARE)
        values = torch.cat([before[numbers], after[numbers]])
        return Anchors(proposal, start.map(lambda *parts: torch.cat(parts), end), values, float(tail) - DEPTH)


def _points(samples: Tensor, generator: torch.Generator) -> Tensor:
    """Return samples, samples with noise, points between samples and points around, in turn."""
    standard = Affine.whitening(samples)
    rows = torch.randint(len(samples), (2, TABLE_PAIRS), generator=generator, device=samples.device)
    u, v = standard.inverse(samples[rows.flatten()]).chunk(2)
    noise = rng.normal(tuple(u.shape), u, generator)
    share = per_chain(rng.uniform((len(u),), u, generator), u)
    size = LEAST_NOISE * (MOST_NOISE / LEAST_NOISE) ** share
    kinds = torch.stack([u, u + size * noise, torch.lerp(u, v, share), WIDTH_AROUND * noise])
    every = torch.arange(len(u), device=u.device)
    points: Tensor = standard(kinds[every % 4, every])
    return points


def _values(anchors: LogDensityFn, x: Tensor, progress: bool) -> Float[Tensor, " point"]:
    """Return log p at all points."""
    parts = []
    with progress_bar(len(x), "anchors", unit="points", show=progress) as tick:
        for part in x.split(CALL_POINTS):
            parts.append(anchors(part))
            checks.answer(parts[-1], part, part.shape[:1], "anchors")
            tick(len(part))
    return torch.cat(parts)


def _require_numbers(numbers: Tensor, at_samples: Tensor) -> None:
    """Refuse log p that is a number almost nowhere."""
    if numbers.sum() < MIN_PAIRS or not at_samples.isfinite().any():
        got = f"{int(numbers.sum())} of {len(numbers)} pairs, and {int(at_samples.isfinite().sum())} samples"
        fix = "Pass log p itself, up to a constant; where p is 0 it may be -inf."
        raise ValueError(checks.message("anchors that are numbers at the samples and around them", got, fix))

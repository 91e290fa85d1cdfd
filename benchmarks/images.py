"""What a step on images costs beyond its score calls: a small UNet of diffusers in its adapter."""

import warnings
from collections.abc import Callable

import torch

import scoremh
from benchmarks import timing
from benchmarks.timing import BARE, Effort, Measured
from scoremh import diffusion

LIMIT = 1.05  # CPU time of a step over that of its own score calls
SIDE, CHAINS, LEVEL = 28, 16, 0.5
# by row, the kernel's proposal, its rule, and how often a step calls the network
ROWS: dict[str, tuple[scoremh.Proposal, scoremh.Rule, int]] = {
    "ULA": (scoremh.MALA(0.01), scoremh.Always(), 1),
    "MALA, Simpson": (scoremh.MALA(0.01), scoremh.LineIntegral("simpson"), 2),
    "ScaledMALA, Simpson": (scoremh.ScaledMALA(0.1), scoremh.LineIntegral("simpson"), 2),
}
SECTION = """
## What a step on images costs

{stamp} CPU time of one step of `sample` over that of its own forwards of the network, a small `UNet2DModel` of
diffusers: {chains} chains of 1 x {side} x {side} pixels, {unit:.0f} milliseconds a forward; medians of {rounds}
rounds. Limit: {limit:g}.

| kernel | score calls a step | CPU time over that of its score calls |
| --- | --- | --- |
{rows}
"""


def network() -> torch.nn.Module:
    """Return a small UNet."""
    from diffusers import UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D",) * 3, "up_block_types": ("UpBlock2D",) * 3}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net: torch.nn.Module = UNet2DModel(SIDE, 1, 1, block_out_channels=(16, 32, 32), norm_num_groups=8, **blocks)
    return net.eval()


def measured(effort: Effort) -> dict[str, Measured]:
    """Measure all rows; the unit of a ratio is one bare forward per score call of the kernel."""
    from diffusers import DDPMScheduler

    net = network()
    with warnings.catch_warnings():  # random weights predict nothing
        warnings.simplefilter("ignore", diffusion.WrappingWarning)
        target = diffusion.from_diffusers(net, DDPMScheduler(), like=(1, SIDE, SIDE)).at(LEVEL)
    generator = torch.Generator().manual_seed(1)
    x, time = torch.randn(CHAINS, 1, SIDE, SIDE, generator=generator), torch.zeros(CHAINS)
    bare = _forwards(net, x, time)
    steps = timing.steps_for(bare, effort)
    kernels = {row: scoremh.metropolis_hastings(target, move, rule) for row, (move, rule, _) in ROWS.items()}

    def sampling(row: str) -> Callable[[], scoremh.Chains]:
        return lambda: scoremh.sample(kernels[row], x, draws=steps, generator=generator)

    seconds = timing.interleaved({BARE: lambda: bare(steps), **{row: sampling(row) for row in ROWS}}, effort)
    unit = timing.microseconds(seconds[BARE], steps)
    found = {}
    for row, (_, _, calls) in ROWS.items():
        whole = timing.ratio(seconds[row], seconds[BARE], less=1 / steps)  # the forward at the start of a run
        each = timing.Ratio(*(value / calls for value in whole))
        found[row] = Measured(each, sampling(row)().acceptance_rate, unit)
    return found


def _forwards(net: torch.nn.Module, x: torch.Tensor, time: torch.Tensor) -> Callable[[int], None]:
    @torch.inference_mode()
    def bare(n: int) -> None:
        for _ in range(n):
            net(x, time)

    return bare


def section(effort: Effort) -> str:
    """Measure and return the section of the page."""
    found = measured(effort)
    rows = []
    for row, cell in found.items():
        median = cell.ratio.median
        number = f"{median:.3f}" if round(median, 2) <= LIMIT else f"**{median:.3f}**"
        rows.append(f"| {row} | {ROWS[row][2]} | {number} |")
    unit = next(iter(found.values())).unit / 1000
    return SECTION.format(
        stamp=timing.stamp(),
        chains=CHAINS,
        side=SIDE,
        unit=unit,
        rounds=effort.rounds,
        limit=LIMIT,
        rows="\n".join(rows),
    )

"""`scoremh demo`: two moons, from samples to a report, in under two minutes on two cores."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from scoremh import Always, Chains, LineIntegral, Rule, Sampler, ScoreMH, datasets
from scoremh._shared import checks
from scoremh._shared.files import write_json
from scoremh._shared.names import ProposalName
from scoremh.cli.app import Output, command_line
from scoremh.cli.commands import clear_run, run_source
from scoremh.estimator.diagnosis import model_contents
from scoremh.estimator.files import CHAINS, CONFIG, METRICS, REPORT, RunFolder, save_model
from scoremh.evaluation import Evaluation, evaluate
from scoremh.report import write
from scoremh.report.images import scatter_panels

SAMPLERS: dict[str, tuple[ProposalName, Rule]] = {
    "Score MALA": ("mala", LineIntegral("simpson")),
    "Score RW": ("rw", LineIntegral("adaptive")),
    "Score pCN": ("pcn", LineIntegral("adaptive")),
    "ULA": ("mala", Always()),
}
ROWS, DRAWS, STEPS, KEPT_DRAWS = 5000, 1000, 300, 50
PANEL_POINTS = 700
DIVERGED_DISTANCE = 100.0  # distance from 0 of a diverged point; the two moons lie within 3
MAX_HALVINGS = 10
DATA = f"datasets.moons({ROWS})"
FRESH = "fresh points"


def run_demo(out: Path, picture: Path, seed: int, output: Output) -> None:
    """Learn two moons, draw more of them, and write a report."""
    folder = _run_folder(out, picture)
    generator = torch.Generator().manual_seed(seed)
    x, fresh = (datasets.moons(n, generator=generator) for n in (ROWS, 2 * DRAWS))
    output.message(f"Step 1 of 3. {ROWS:,} points of two moons: learning a score")
    model = _fitted_model(x, seed, verbose=output.progress)
    save_model(model, folder)
    output.message(f"Step 2 of 3. {DRAWS:,} chains from noise, {STEPS} steps of each kernel")
    chains, share = _chains(model, generator, progress=output.progress)
    own, samples = chains["Score MALA"], {name: one.last for name, one in chains.items()}
    folder.put(CHAINS, own.save)
    output.message("Step 3 of 3. Distances to fresh points, and a report")
    found = evaluate(samples, fresh, points=DRAWS, name=FRESH, progress=output.progress)
    folder.put(METRICS, partial(write_json, contents=found.to_dict()))
    contents = model_contents(model, own, fresh[:DRAWS], FRESH, found, source=run_source(folder), samples=samples)
    folder.put(REPORT, partial(write, contents))
    _write_picture(samples, fresh[:DRAWS], found, picture)
    summary = f"{found}\n\n{_conclusion(found, share)}"
    output.result(found.to_dict() | {"run": str(out), "picture": str(picture)}, summary)
    output.message(f"See {picture}, and open {out / REPORT}")


def _run_folder(out: Path, picture: Path) -> RunFolder:
    """Return a new folder for the run; replace an earlier demo, and raise an error for any other run."""
    if picture.parent != out and not picture.parent.is_dir():
        raise FileNotFoundError(checks.message("a folder for the picture", picture.parent, "Create it first."))
    if (out / CONFIG).exists() and RunFolder.open(out).config.get("data") != DATA:
        fix = "Choose another folder."
        raise FileExistsError(checks.message(f"{out} to be a new folder", "one with another run", fix))
    clear_run(out)
    source = {"command": command_line(), "data": DATA, "rows": ROWS, "event": [2], "finished": False}
    return RunFolder.create(out, source)


def _fitted_model(x: Tensor, seed: int, *, verbose: bool) -> ScoreMH:
    return ScoreMH(chain_steps=STEPS, verbose=verbose, random_state=seed).fit(x.numpy())


def _chains(model: ScoreMH, generator: torch.Generator, *, progress: bool) -> tuple[dict[str, Chains], float]:
    """Return chains of every kernel from the same start, and the ratio of ULA's step to Score MALA's.

    ULA uses the step of Score MALA, halved until its chains do not diverge.
    """
    first = model.sampler_
    start = first.descend(DRAWS, generator=generator)
    chains, share = {}, 1.0

    def run(sampler: Sampler) -> Chains:
        return sampler.run(start, STEPS, draws=KEPT_DRAWS, generator=generator, progress=progress)

    for name, (proposal, acceptance) in SAMPLERS.items():
        sampler = replace(first, proposal=proposal, acceptance=acceptance)
        if proposal != first.proposal:
            sampler = sampler.tune(start[:200], steps=STEPS, generator=generator, progress=progress)
        chains[name] = run(sampler)
        while name == "ULA" and share > 0.5**MAX_HALVINGS and _diverged(chains[name].last):
            share /= 2
            chains[name] = run(replace(sampler, step_size=share * model.step_size_))
    return chains, share


def _diverged(x: Tensor) -> bool:
    """Return whether a point is not finite, or further away than any point of the two moons."""
    return not bool((x.abs() < DIVERGED_DISTANCE).all())


def _write_picture(samples: dict[str, Tensor], fresh: Tensor, found: Evaluation, path: Path) -> None:
    captions = [f"W1: {ratio:.2f} times that of fresh points" for ratio in _ratios(found).values()]
    title = "Two moons, learned from samples, drawn by chains from noise"
    panels = {name: points[:PANEL_POINTS] for name, points in {FRESH: fresh, **samples}.items()}
    scatter_panels(panels, path, captions=["", *captions], title=title)


def _ratios(found: Evaluation) -> dict[str, float]:
    """Return W1 of every sampler as a multiple of its floor."""
    floor = found.floors["w1"][0]
    return {name: (values["w1"] or float("nan")) / floor for name, values in found.metrics.items()}


def _conclusion(found: Evaluation, share: float) -> str:
    """Return a sentence on the results; `share` is the ratio of ULA's step to Score MALA's."""
    ratios = _ratios(found)
    adjusted = [ratio for name, ratio in ratios.items() if name != "ULA"]
    step = "the step of Score MALA" + f" times {share:g}, since its chains diverge at longer steps" * (share < 1)
    return (
        f"With an accept step, computed from the score alone, draws are {min(adjusted):.2f} to {max(adjusted):.2f} "
        f"times as far from fresh points (W1) as other fresh points are; without one (ULA, {step}) "
        f"{ratios['ULA']:.2f} times."
    )

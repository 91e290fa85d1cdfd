"""`scoremh demo`: Moons, from nothing to a report, in under three minutes on two cores."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scoremh import Chains, ScoreMH, datasets, plots
from scoremh._shared import checks
from scoremh.cli import judging
from scoremh.cli.output import Output, Whole, command
from scoremh.cli.runs import CHAINS, METRICS, REPORT, cleared
from scoremh.estimator import files
from scoremh.estimator.folder import CONFIG, Folder
from scoremh.estimator.sampler import AcceptanceName, ProposalName

SAMPLERS: dict[str, tuple[ProposalName, AcceptanceName]] = {
    "Score MALA": ("mala", "potential"),
    "Score RW": ("rw", "potential"),
    "Score pCN": ("pcn", "potential"),
    "ULA": ("mala", "always"),
}
ROWS, DRAWS, STEPS, KEPT = 5000, 1000, 300, 50
DOTS = 700  # points of a panel
TRAINING = (4000, 3000)  # steps of the score's and of the acceptance's


def demo(
    *,
    out: Path = Path("out/demo"),
    picture: Path | None = None,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Learn Moons from samples and draw more of them, with an accept step and without, and write a report.

    Args:
        out: Folder of the run; an earlier demo in it is replaced, and nothing else.
        picture: File for the picture; in the folder if not given.
        seed: Of everything.
        output: How to speak.
    """
    picture, data = out / "demo.png" if picture is None else picture, f"datasets.moons({ROWS})"
    if picture.parent != out and not picture.parent.is_dir():
        raise FileNotFoundError(checks.message("a folder for the picture", picture.parent, "Make it first."))
    if (out / CONFIG).exists() and Folder.open(out).config.get("data") != data:
        raise FileExistsError(checks.message(f"{out} to be a new folder", "one with another run", "Name another one."))
    generator = torch.Generator().manual_seed(seed)
    x, fresh = (datasets.moons(n, generator=generator) for n in (ROWS, 2 * DRAWS))
    cleared(out)
    told = {"command": command(), "data": data, "rows": ROWS, "event": [2], "finished": False}
    folder = Folder.create(out, told)
    output.say(f"{ROWS:,} points of two moons: learning their score, and a potential that decides what to accept")
    score_steps, acceptance_steps = TRAINING
    model = ScoreMH(
        score_steps=score_steps,
        acceptance_steps=acceptance_steps,
        chain_steps=STEPS,
        verbose=output.talks,
        random_state=seed,
    ).fit(x.numpy())
    files.write(model, folder)
    output.say(f"{DRAWS:,} chains from noise, then {STEPS} steps of each kernel from where they came down")
    drawn = _drawn(model, generator, progress=output.talks)
    folder.put(CHAINS, drawn["Score MALA"].save)
    samples = {name: chains.last for name, chains in drawn.items()}
    found = judging.judged(samples, fresh, DRAWS, progress=output.talks) | {"reference": "fresh points"}
    folder.put(METRICS, lambda path: judging.write(found, path))
    contents = judging.contents(
        model, folder.config, drawn["Score MALA"], fresh[:DRAWS], "fresh points", found, samples
    )
    folder.put(REPORT, lambda path: judging.page(contents, path))
    _picture(samples, fresh[:DRAWS], found, picture)
    output.tell(found | {"run": str(out), "picture": str(picture)}, f"{judging.table(found)}\n\n{_learned(found)}")
    output.say(f"look at {picture}, and open {out / REPORT}")


def _drawn(model: ScoreMH, generator: torch.Generator, *, progress: bool) -> dict[str, Chains]:
    """Run all kernels from the same places: one potential serves every proposal."""
    first = model.sampler_
    begun = first.annealed(DRAWS, model.annealing_steps, generator=generator, progress=progress)
    drawn = {}
    for name, (proposal, acceptance) in SAMPLERS.items():
        learned = first.learned if acceptance == "potential" else None
        sampler = replace(first, proposal=proposal, acceptance=acceptance, learned=learned)
        if proposal != first.proposal:
            sampler = sampler.tuned(begun.draws[:200], STEPS, generator=generator, progress=progress)
        drawn[name] = sampler.run(begun, STEPS, KEPT, generator=generator, progress=progress)
    return drawn


def _picture(samples: dict[str, Tensor], fresh: Tensor, found: dict[str, Any], path: Path) -> None:
    floor = found["floors"]["w1"][0]
    captions = [f"W1 {found['samplers'][name]['w1'] / floor:.2f} of the floor" for name in samples]
    title = "Two moons, learned from samples, drawn by chains from noise"
    panels = {name: points[:DOTS] for name, points in {"fresh points": fresh, **samples}.items()}
    plots.scatter_panels(panels, path, captions=["", *captions], title=title)


def _learned(found: dict[str, Any]) -> str:
    """Say what the numbers show."""
    floor = found["floors"]["w1"][0]
    ratios = {name: values["w1"] / floor for name, values in found["samplers"].items()}
    adjusted = [ratio for name, ratio in ratios.items() if name != "ULA"]
    return (
        f"With an accept step, learned from the score alone, draws are {min(adjusted):.2f} to {max(adjusted):.2f} "
        f"times as far from fresh points (W1) as other fresh points are; without one (ULA, the step of Score MALA) "
        f"{ratios['ULA']:.2f} times."
    )

"""`scoremh reproduce`: the tables and figures of the paper."""

import os
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from scoremh import experiments
from scoremh._shared import checks
from scoremh.cli.output import Output, Whole, resumable


def reproduce(
    name: str | None = None,
    *,
    preset: str | None = None,
    out: Path = Path("out"),
    docs: Path | None = None,
    workers: Whole | None = None,
    as_is: bool = False,
    list_: bool = False,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Compute a table or figure of the paper. What is there already is kept: an interrupted run goes on.

    Args:
        name: Of the experiment; --list shows them.
        preset: How much of it: "paper" for the numbers in the documentation; the first one that --list shows if not
            given.
        out: Folder for what is computed on the way.
        docs: Folder for the page, its pictures and the results; beside what is computed if not given.
        workers: Parts to compute at the same time; as many as there are cores if not given.
        as_is: Compute nothing, and write the page from what is there.
        list_: Show the experiments, and do nothing.
        output: How to speak.
    """
    found = experiments.found()
    if list_ or name is None:
        listed = {
            key: {"presets": list(one.PRESETS), "shows": (one.__doc__ or "").strip().splitlines()[0]}
            for key, one in found.items()
        }
        width = max(map(len, listed))
        lines = (f"{key:{width}}  {', '.join(one['presets'])}: {one['shows']}" for key, one in listed.items())
        output.tell(listed, "\n".join(lines))
        return
    if name not in found:
        raise ValueError(checks.message(f"an experiment, one of {', '.join(found)}", repr(name), "See --list."))
    presets = list(found[name].PRESETS)
    preset = presets[0] if preset is None else preset
    if preset not in presets:
        expected = f"a preset of {name}, one of {', '.join(presets)}"
        raise ValueError(checks.message(expected, repr(preset), "See --list."))
    with ExitStack() as stack:
        stack.enter_context(resumable(f"What was finished is in {out}; the same command goes on from there."))
        if not output.talks:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        found[name].run(preset, out, docs, workers=workers, as_is=as_is)
    output.tell({"experiment": name, "preset": preset, "out": str(out)}, f"in {out if docs is None else docs}")

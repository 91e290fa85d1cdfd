"""`scoremh demo`: Moons, from nothing to a report."""

from pathlib import Path

from scoremh.cli.output import Output, Whole


def demo(
    *,
    out: Path = Path("out/demo"),
    picture: Path | None = None,
    seed: Whole = 0,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Learn two moons from samples, draw more with and without an accept step, and write a report.

    Args:
        out: Folder for the run; an earlier demo in it is replaced.
        picture: File for the picture; demo.png in the folder by default.
        seed: Random seed; the same seed gives the same run.
        output: Verbosity and format of the output.
    """
    from scoremh.cli.moons import run_demo

    run_demo(out, out / "demo.png" if picture is None else picture, seed, output)

"""`scoremh --install-completion`: the shell completes commands, options and their values."""

from typing import Literal

from scoremh.cli.output import Output


def install_completion(
    *,
    shell: Literal["zsh", "bash", "fish", "powershell"] | None = None,
    output: Output = Output(),  # noqa: B008  # frozen
) -> None:
    """Install completion for a shell.

    Args:
        shell: Shell to install it for; the one that is running by default.
        output: Verbosity and format of the output.
    """
    from scoremh.cli.app import app

    path = app.install_completion(shell=shell)  # the name of one  # nosec B604
    output.result({"path": str(path)}, f"Completion is in {path}. Open a new shell.")

"""`python -m scoremh` and `scoremh` are the command line, which needs the extra "cli"."""

from scoremh._shared.extras import extra


def main() -> None:
    """Run the command line; without the libraries it needs, exit with the command that installs them."""
    try:
        with extra("cli"):
            from scoremh import cli
    except ImportError as error:
        raise SystemExit(f"scoremh: {error}") from error
    cli.main()


if __name__ == "__main__":
    main()

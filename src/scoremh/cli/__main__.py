"""Run the command line as `python -m scoremh.cli`."""

from scoremh.cli import main

if __name__ == "__main__":
    main()

"""`python -m scoremh.cli` is the command line."""

from scoremh.cli import main

if __name__ == "__main__":
    main()

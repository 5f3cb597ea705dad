"""`python -m paddock` is the command line."""

from paddock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

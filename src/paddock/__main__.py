"""Run the command line, as `paddock` does. Python puts the current directory first for `-m`: `python -P -m paddock`."""

from paddock.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

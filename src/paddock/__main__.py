"""Run the command line, as `paddock` does. Python puts the current directory first for `-m`: `python -P -m paddock`."""

from paddock.cli import script

if __name__ == "__main__":
    script()

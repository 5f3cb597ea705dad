"""Store the daemon's state in one SQLite file, with the trees that each row needs."""

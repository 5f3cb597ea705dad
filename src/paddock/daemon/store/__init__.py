"""What the daemon remembers: its one SQLite file, and which rows need which trees."""

"""What runs beside the inner wall of a vessel, out of the kit: the pilot, and what serves a machine its files. Standard
library only; imports nothing of ours but itself."""

"""What runs inside sandboxes: init, agents, and the frames they speak. Standard library only; imports nothing of ours
but itself. `_everything` is all of it, for whoever becomes a guest; a host needs the frames."""

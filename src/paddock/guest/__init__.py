"""What runs inside sandboxes: init, agents, and the frames they speak. Standard library only; imports nothing of ours
but itself."""

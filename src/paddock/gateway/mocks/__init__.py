"""Answer in the place of hosts that a policy mocks."""

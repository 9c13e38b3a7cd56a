"""The simulated world: virtual time, a network that misbehaves, and judges of what happened."""

"""The simulated world: virtual time, a network that misbehaves, and judges of what happened.

The algorithms are the product's own, unchanged: the locks and leases of async code, the keeper's three loops, and the
lease table as the server. ``python -m leasehold.sim --help`` runs it.
"""

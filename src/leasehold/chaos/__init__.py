"""The chaos tester: worker processes on a real engine, real faults, a recorded history, and judges who read it.

`leasehold chaos --on URL` is its command. A run goes through these parts, one module each:

- `workloads`: what the workers do, and the resource at which it is judged;
- `subjects`: the library that is asked for the lock, Leasehold or a peer;
- `faults`: what is broken meanwhile, at the `site` of the run;
- `run_info`: what the run was;
- `history`: what everybody recorded;
- `checkers`: pure functions from a history to verdicts;
- `report`: one HTML page and one JSON file.
"""

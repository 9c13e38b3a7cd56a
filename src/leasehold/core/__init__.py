"""The algorithms, written once. They touch nothing but an `Engine` and the `World` it lives in."""

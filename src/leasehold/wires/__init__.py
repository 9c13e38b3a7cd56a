"""Client families, blocking and async: the only place that imports a client library."""

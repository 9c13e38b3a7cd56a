"""Metrics, traces and logs: watchers (see `leasehold.watch`) for Prometheus, OpenTelemetry and the standard logging.

Importing this imports none of those; each has a module, and what it needs is an extra of the same name.
"""

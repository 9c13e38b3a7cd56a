"""Advice: which pattern, on which engine, and why; the same tree for the command and for the documentation."""

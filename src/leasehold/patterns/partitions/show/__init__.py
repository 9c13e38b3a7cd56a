"""A show of partitions on a real engine, with real processes that join, leave, are killed and are frozen.

    python -m leasehold.patterns.partitions.show

What it judges by is a database with a fence: what every worker wrote there, in which order, and what was refused.
"""

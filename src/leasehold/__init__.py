"""Locks across processes and machines that stay correct when a holder stalls."""

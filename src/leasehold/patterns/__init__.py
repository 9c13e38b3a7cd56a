"""The patterns that make most locks unnecessary, or that use one well."""

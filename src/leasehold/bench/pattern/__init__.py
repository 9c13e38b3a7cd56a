"""The comparisons of `leasehold.bench.patterns`, one file a kind; each imports the libraries that it measures."""

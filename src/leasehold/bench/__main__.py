"""``python -m leasehold.bench``."""

import sys

from leasehold.bench import main

if __name__ == "__main__":
    sys.exit(main())

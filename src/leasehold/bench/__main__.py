"""``python -m leasehold.bench``."""

import sys

from leasehold.bench import main

sys.exit(main())

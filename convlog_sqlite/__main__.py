"""`python -m convlog_sqlite` is `convlog`."""

import sys

from convlog_sqlite.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m mpicoll``: the same as the ``mpicoll`` command."""

import sys

from mpicoll.cli import main

if __name__ == "__main__":
    sys.exit(main())

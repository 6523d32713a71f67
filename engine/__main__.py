"""`python -m engine`: the same as `suspended`."""

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())

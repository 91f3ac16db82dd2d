"""``python -m torchllp`` is ``llp``."""

import sys

from torchllp.cli import main

if __name__ == "__main__":
    sys.exit(main())

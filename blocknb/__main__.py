"""`python -m blocknb` is the command `blocknb`."""

import sys

from blocknb.cli import main

sys.exit(main())

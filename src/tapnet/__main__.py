"""`python -m tapnet`."""

import sys

from tapnet.cli import main

sys.exit(main())

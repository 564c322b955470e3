"""Entry point of `python -m turnmill_operator`."""

import sys

from turnmill_operator.main import main

sys.exit(main())

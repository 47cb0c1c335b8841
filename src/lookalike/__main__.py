import sys

from lookalike.cli import main

sys.exit(main())

import sys

from lookalike.app import main

sys.exit(main())

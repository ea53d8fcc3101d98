"""`python -m nodeagent`: the command `nodeagent`."""

import sys

from nodeagent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

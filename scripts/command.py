#!/opt/nodeagent/bin/python -IS
"""The command `nodeagent` as scripts/install.sh installs it.

-I keeps the caller's PYTHON* variables, user site and directory out of it, for root runs it. -S leaves out the module `site`: `job` doesn't
need what that adds, and all other commands add it themselves.
"""

import os
import sys

sys.path.append(f"/opt/nodeagent/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")

from nodeagent.__main__ import main

if __name__ == "__main__":
    # `main` has flushed the output. To free each module before the end would take a tenth of a short command's time.
    os._exit(main())

"""`python -m mcp_server` is the command `rigbench`."""

from __future__ import annotations

import sys

from mcp_server.cli import main

if __name__ == "__main__":
    sys.exit(main())

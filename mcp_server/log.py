"""Logging: to stderr, since stdout of the server belongs to the protocol; the worker's stderr is its log file."""

from __future__ import annotations

import logging
import sys


def configure(level: int = logging.INFO) -> None:
    """Set up the root logger; called once, by the process's main function."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)

"""The first lines of ``helio``, before half a second of imports."""

import sys


def main() -> None:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, which says nothing."""
    try:
        from heliograph.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()

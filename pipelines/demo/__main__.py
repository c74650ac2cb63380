"""``python -m pipelines.demo``: exit code 0 only if every check held. ``KEEP=1`` leaves the cluster up."""

from __future__ import annotations

import os
import signal
import sys

from heliograph.errors import ResourceError
from pipelines.demo.signals import EXIT_SIGNALLED, end_in_order
from pipelines.spark_session import require_spark

EXIT_NOT_RUN = 2


def main() -> int:
    """Run it; the exit code."""
    end_in_order()
    try:
        require_spark()
    except ResourceError as error:
        print(f"The demonstration cannot run: {error}", file=sys.stderr)
        return EXIT_NOT_RUN
    from pipelines.demo.demonstration import demonstrate  # only now: it needs what was just looked for

    try:
        return demonstrate(keep=os.environ.get("KEEP", "") not in ("", "0"))
    except KeyboardInterrupt:
        return EXIT_SIGNALLED + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

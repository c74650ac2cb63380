"""The command ``python -m examples.flights``: exit code 0 only if every check held. ``KEEP=1`` keeps the cluster."""

from __future__ import annotations

import os
import signal
import sys

from examples.flights.cluster import EXIT_SIGNALLED, end_by_exception
from heliograph.base.errors import ResourceError
from heliograph.pipelines.spark.session import require_spark

EXIT_NOT_RUN = 2


def main() -> int:
    """Run the demonstration and return its exit code."""
    end_by_exception()
    try:
        require_spark()
    except ResourceError as error:
        print(f"The demonstration cannot run: {error}", file=sys.stderr)
        return EXIT_NOT_RUN
    from examples.flights.demonstration import (
        demonstrate,
    )  # imported here because it needs the packages that were just checked

    try:
        return demonstrate(keep=os.environ.get("KEEP", "") not in ("", "0"))
    except KeyboardInterrupt:
        return EXIT_SIGNALLED + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

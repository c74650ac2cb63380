"""EIO and ENOSPC at each write, sync, rename and creation of a run, one at a time.

``python -m tests.chaos.bookie_faults`` does all of them, the tests every second one. Exit code 1: something
acknowledged was lost.
"""

from __future__ import annotations

import errno
import logging
import sys
import time
import traceback
from collections import Counter
from itertools import product

from tests.cluster.bookie.damage.test_faults import WRITTEN_ONCE_BYTES, fail_each


def main() -> int:
    """Run the command line."""
    logging.disable(logging.CRITICAL)  # every failure is injected
    for number, single_write_bytes in product((errno.EIO, errno.ENOSPC), (0, WRITTEN_ONCE_BYTES)):
        started = time.monotonic()
        try:
            failed = fail_each(number, 1, single_write_bytes)
        except AssertionError:
            traceback.print_exc()
            return 1
        kinds = ", ".join(f"{count} {verb}" for verb, count in Counter(what.split(" ")[0] for what in failed).items())
        took = time.monotonic() - started
        how = "written once" if single_write_bytes else "copied"
        print(
            f"{errno.errorcode[number]}, entries {how}: {len(failed)} operations failed in turn ({kinds}), "
            f"nothing lost, {took:.0f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

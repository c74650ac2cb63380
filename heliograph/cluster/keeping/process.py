"""The program of a part's process: it joins Ray as a driver, makes the part and answers the calls of its actor.

It ends with the raylet of its node, and when Ray has no actor for it any more. When memory runs out, Linux kills it no
sooner than the raylet; Ray's workers are killed first.
"""

from __future__ import annotations

import os
import socket
import sys


def main() -> None:
    """Run the process of a part. The first argument is the socket that the plan comes from."""
    if os.fork():  # the parent ends: Ray, which ends the children of its workers, does not know this process
        os._exit(0)
    os.setpgid(0, 0)
    told = socket.socket(fileno=int(sys.argv[1]))
    from heliograph.cluster.keeping.host import run

    run(told)

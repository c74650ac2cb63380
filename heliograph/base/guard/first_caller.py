"""A program that listens in place of a server until a client connects, and then becomes the server.

It is run by its path, so that it loads nothing but Python: it takes 5 MB, and wakes for the first connection. That
connection ends, because the server opens the port itself; so it is for servers whose clients connect again.
"""

import os
import select
import socket
import sys


def main(host: str, port: int, command: list[str]) -> None:
    """Wait for a connection to an address; run a command in place of this program.

    Args:
        command: its first word is the path of a program. It runs at once if the address cannot be used, and says why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.poll()
    except OSError as error:
        print(f"nobody is waited for at {host}:{port}: {error}", file=sys.stderr, flush=True)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])

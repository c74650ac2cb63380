"""A server that starts with the first connection to its port."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from heliograph.base.guard import first_caller
from heliograph.cluster.ports import pick_free

SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("serves", flush=True)
    caller, _ = listener.accept()
    caller.sendall(b"hello")
"""


def _connects(port: int) -> bool:
    """Return whether a process listens. The first caller is reset if the listener ends while it connects."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_the_server_starts_with_the_first_caller_and_answers_the_next_one() -> None:
    port = pick_free()
    command = [sys.executable, "-I", "-S", first_caller.__file__, "127.0.0.1", str(port)]
    serve = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen([*command, *serve], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while not _connects(port):  # Python has not loaded yet
            assert process.poll() is None
        assert process.stdout.readline() == b"serves\n"  # by the same process
        with socket.create_connection(("127.0.0.1", port), timeout=30) as caller:
            assert caller.recv(16) == b"hello"
        assert process.wait() == 0


def test_a_server_whose_port_is_taken_runs_at_once_and_says_so_itself(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-I", "-S", first_caller.__file__, "127.0.0.1", str(port)]
        ran = subprocess.run([*command, sys.executable, "-c", SERVER, str(port)], timeout=60, check=False)
    assert ran.returncode == 1
    told = capfd.readouterr().err
    assert f"nobody is waited for at 127.0.0.1:{port}" in told
    assert "OSError" in told

"""Networks of machines: delayed and lost frames leave connections intact, and Unix sockets stay on their machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.machines.forwarder import DELAY_SECONDS
from tests.machines.network import Machine, disturbed, network

pytestmark = pytest.mark.timeout(300)

SENT_BYTES = 1 << 19
ROUNDS = 40
# Sends bytes and has them sent back, then bounces single bytes and prints the shortest time of a round, in seconds.
CLIENT = f"""
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 9000), 60)
sent = bytes(range(256)) * {SENT_BYTES // 256}
peer.sendall(sent)
got = b""
while len(got) < len(sent):
    got += peer.recv(1 << 20)
assert got == sent
times = []
for _ in range({ROUNDS}):
    begun = time.monotonic()
    peer.sendall(b"x")
    assert peer.recv(1) == b"x"
    times.append(time.monotonic() - begun)
print(min(times))
"""
SERVER = f"""
import socket
listener = socket.create_server(("", 9000))
print("ready", flush=True)
peer, _ = listener.accept()
got = b""
while len(got) < {SENT_BYTES}:
    got += peer.recv(1 << 20)
peer.sendall(got)
while data := peer.recv(1):
    peer.sendall(data)
"""
# Listens beside a TCP address as brokers and bookies do, until it is killed.
LOCAL_SERVER = """
import asyncio, sys
from heliograph.base.guard.local_socket import LocalListener
async def serve():
    listener = LocalListener("server", asyncio.Protocol)
    await listener.listen("0.0.0.0", 9001, sys.argv[1], 16)
    await listener.start_serving()
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(serve())
"""
LOCAL_CLIENT = """
import sys
from heliograph.base.guard.local_socket import connected_socket
print(connected_socket(sys.argv[1], 9001) is not None)
"""


@pytest.fixture
def two_machines() -> Iterator[list[Machine]]:
    with network(2) as machines:
        yield machines


def shortest_round(machines: list[Machine]) -> float:
    """Send both ways over one connection, and return the shortest time there and back, in seconds."""
    client, server = machines
    command = server.command([sys.executable, "-c", SERVER])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        try:
            assert serving.stdout.readline() == "ready\n"
            told = subprocess.run(
                client.command([sys.executable, "-c", CLIENT, server.address]),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        finally:
            serving.kill()
    assert told.returncode == 0, told.stderr
    return float(told.stdout)


def test_frames_are_delayed_and_lost_and_connections_stay_whole(two_machines: list[Machine]) -> None:
    with disturbed(two_machines, seed=1):
        assert shortest_round(two_machines) >= 2 * DELAY_SECONDS[0], "each way has its delay"
    assert shortest_round(two_machines) > 0, "the network is as before"


def test_a_unix_socket_is_reached_on_its_own_machine_only(two_machines: list[Machine]) -> None:
    own, other = two_machines
    for advertised in (own.address, "127.0.0.1"):  # each machine has the second one
        command = own.command([sys.executable, "-c", LOCAL_SERVER, advertised])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
            try:
                assert serving.stdout is not None
                assert serving.stdout.readline() == "ready\n"
                found = []
                for machine in (own, other):
                    client = machine.command([sys.executable, "-c", LOCAL_CLIENT, advertised])
                    found.append(subprocess.run(client, capture_output=True, text=True, check=True).stdout.strip())
            finally:
                serving.kill()
        assert found == ["True", "False"], advertised

"""Machines of one test: network namespaces that are joined by a bridge. Needs root and ``ip``.

The test's own process is on the bridge, too, so it reaches every machine. Names and addresses have this process's id in
them; two runs on one computer do not meet.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.machines import forwarder as forwarding

END_SECONDS = 20.0
NOBODY = "02:00:00:00:00:fe"  # a hardware address that no device has
_BRIDGE = "02:00:00:00:00:fd"
_ANSWER_NOTHING = "8"
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace, with the address of its one network device besides loopback."""

    namespace: str
    device: str  # the bridge's end of its cable
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this machine."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def pull_the_cable(self) -> None:
        """Cut the machine off from all others; what runs on it goes on."""
        _run("ip", "link", "set", self.device, "down")

    def plug_in(self) -> None:
        """Join the machine to the others again."""
        _run("ip", "link", "set", self.device, "up")

    def stop_sending_to(self, other: Machine) -> None:
        """Lose every packet to another machine without a word: one way of a broken network."""
        _run(*self._ip, "neigh", "replace", other.address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def send_again_to(self, other: Machine) -> None:
        """Undo ``stop_sending_to``."""
        _run(*self._ip, "neigh", "del", other.address, "dev", "eth0")

    def pids(self, title: str) -> list[int]:
        """Return the processes with that in their title, such as ``part::bookie-``."""
        return [pid for pid in self._pids() if title in _title(pid)]

    def kill(self, title: str, *, by: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the processes with that in their title."""
        for pid in self.pids(title):
            with suppress(ProcessLookupError):
                os.kill(pid, by)

    @property
    def _ip(self) -> list[str]:
        return ["ip", "-n", self.namespace]

    def power_off(self) -> None:
        """End everything that runs on the machine, as a loss of power would; its disk stays."""
        deadline = time.monotonic() + END_SECONDS
        while pids := self._pids():
            assert time.monotonic() < deadline, f"processes of {self.namespace} do not end: {pids}"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def readdressed(self, address: str) -> Machine:
        """Give the machine another address in place of the one that it has, and return it with that."""
        _run(*self._ip, "address", "del", f"{self.address}/24", "dev", "eth0")
        _run(*self._ip, "address", "add", f"{address}/24", "dev", "eth0")
        _run(*self._ip, "route", "replace", "default", "via", f"{address.rpartition('.')[0]}.254")
        return replace(self, address=address)

    def _pids(self) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        return [pid for pid in map(int, listed.stdout.split()) if _is_running(pid)]


def wait_for(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: it does not in so many seconds; names it.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(_POLL_SECONDS)


@contextmanager
def disturbed(machines: Sequence[Machine], seed: int) -> Iterator[None]:
    """Delay and lose frames that the machines send, by ``forwarder``, for the length of the block."""
    cables = [(machine.device, f"{machine.device}x", f"{machine.device}y") for machine in machines]
    bridges = [_bridge_of(machine) for machine in machines]
    pairs = [f"{device}:{inner}" for device, inner, _ in cables]
    try:
        for device, inner, outer in cables:
            _run("ip", "link", "add", inner, "type", "veth", "peer", "name", outer)
            _run("ip", "link", "set", inner, "up")
            # Else this computer answers in the bridge's place, with the address of this device.
            Path(f"/proc/sys/net/ipv4/conf/{device}/arp_ignore").write_text(_ANSWER_NOTHING)
        forwarder = subprocess.Popen(
            [sys.executable, "-m", forwarding.__name__, str(seed), *pairs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        with forwarder:
            try:
                assert forwarder.stdout is not None, "it is a pipe"
                assert forwarder.stdout.readline().strip() == forwarding.READY, "the forwarder has opened the devices"
                for (device, _, outer), bridge in zip(cables, bridges, strict=True):
                    _run("ip", "link", "set", device, "nomaster")
                    _run("ip", "link", "set", outer, "master", bridge, "up")
                yield
                assert forwarder.poll() is None, "the forwarder goes on"
            finally:
                forwarder.terminate()
    finally:
        for (device, inner, _), bridge in zip(cables, bridges, strict=True):
            subprocess.run(["ip", "link", "delete", inner], capture_output=True, check=False)
            _run("ip", "link", "set", device, "master", bridge)
            Path(f"/proc/sys/net/ipv4/conf/{device}/arp_ignore").write_text("0")


_networks = itertools.count()  # of this process: a test may have one beside that of the session


@contextmanager
def network(count: int) -> Iterator[list[Machine]]:
    """Make so many machines on one bridge; at the end nothing of them is left."""
    _require()
    own, which = os.getpid(), next(_networks)
    prefix = f"10.{77 + own % 100}.{(own // 100 + 61 * which) % 250}"
    bridge = f"hb{own}-{which}"
    names = [f"{own}-{which}{n}" for n in range(1, count + 1)]
    machines = [Machine(f"hg{name}", f"hv{name}", f"{prefix}.{n}") for n, name in enumerate(names, 1)]
    try:
        # With an address of its own; that of a bridge without one changes with the devices on it.
        _run("ip", "link", "add", bridge, "address", _BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{prefix}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for machine in machines:
            name = machine.namespace
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", machine.device, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", machine.device, "master", bridge, "up")
            _run("ip", "-n", name, "address", "add", f"{machine.address}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "route", "add", "default", "via", f"{prefix}.254")
        yield machines
    finally:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.split()
        for machine in machines:
            if machine.namespace in left:
                machine.power_off()
                _run("ip", "netns", "delete", machine.namespace)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True, check=False)


def _require() -> None:
    """Skip the test where no namespaces can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("machines are network namespaces, which need root and `ip` (package iproute2)")
    probe = f"hp{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    _run("ip", "netns", "delete", probe)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _bridge_of(machine: Machine) -> str:
    return os.path.basename(os.readlink(f"/sys/class/net/{machine.device}/master"))


def _is_running(pid: int) -> bool:
    """Return whether a process has not ended; one that its parent has not waited for has."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as title:
            return title.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

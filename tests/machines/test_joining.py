"""A machine that comes into a running cluster by ``helio join``, and goes out of it by ``helio leave``."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from heliograph.base.home import replace_private
from heliograph.base.tls.authority import CertificateAuthority, CertificateFacts, is_ending, key_bytes, request_of
from tests.machines.network import wait_for
from tests.machines.site import PORT, Site, site_of
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.full]

TAKE = """
import socket, sys, time
taken = socket.socket()
taken.bind((sys.argv[1], int(sys.argv[2])))
taken.listen()
print("taken", flush=True)
time.sleep(900)
"""


# Publishes until the file is there, and prints how many messages were confirmed.
PUBLISH = """
import pathlib, sys, time
import heliograph
with heliograph.connect() as client, client.producer("renewed", send_timeout_ms=300_000) as producer:
    count = 0
    while not pathlib.Path(sys.argv[1]).exists():
        producer.send(b"%d" % count)
        count += 1
        time.sleep(0.05)
print(count)
"""
SHORT_SECONDS = 150  # that a certificate is good for; parts look once a minute


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_of(Path(tmp_path_factory.mktemp("j")), 2) as made:
        yield made


def test_a_machine_joins_serves_and_leaves_without_a_loss(site: Site) -> None:
    head, other = site.machines
    at = f"{head.address}:{PORT}"
    sent = [f"line {number}" for number in range(200)]
    site.helio(0, "produce", "before", given="\n".join(sent))
    assert "nearest is heliograph.io/broker" in site.refused(1, "join", at, "--label", "brokr=true")
    assert "no Ray answers" in site.refused(1, "join", f"{head.address}:6378")
    assert "refuses this machine's token" in site.refused(1, "join", at, RAY_AUTH_TOKEN="b" * 64)
    assert "has a node at" in site.refused(0, "join", at, "--home", str(site.directory / "second"))
    with subprocess.Popen(
        other.command([sys.executable, "-c", TAKE, other.address, "6401"]), stdout=subprocess.PIPE
    ) as blocking:
        assert blocking.stdout is not None
        blocking.stdout.readline()
        assert f"port 6401 on {other.address}" in site.refused(1, "join", at, "--ray-port", "6400")
        blocking.kill()

    site.helio(1, "join", at, "--label", "bookie=true", "--label", "broker=true,rack=r2")
    status = site.status()
    assert status["healthy"]
    addresses = {actor["name"]: actor["address"] for actor in status["actors"]}
    assert addresses["bookie-3"].startswith(f"tls://{other.address}:")
    assert addresses["broker-2"].startswith(f"pulsar://{other.address}:")
    assert "broker-3" not in addresses, "the machine takes a broker of the first one over"
    assert "has joined" in site.helio(1, "join")
    own, first = (
        CertificateAuthority(home / "certificates").facts_of("parts.pem") for home in (site.disk(), site.head_home)
    )
    assert own is not None
    assert first is not None
    assert other.address in own.names
    assert head.address not in own.names
    assert other.address not in first.names
    assert not (site.disk() / "certificates" / "ca.key").exists(), "the authority stays where it is"
    assert "helio leave first" in site.refused(1, "join", "--label", "broker=true")
    told = json.loads(site.helio(1, "status", "--json"))  # by the gateway: this machine has no secret of the cluster
    assert told["healthy"]
    assert {actor["name"] for actor in told["actors"]} == addresses.keys()
    assert told["bookies_available"] == ["bookie-1", "bookie-2", "bookie-3"]
    site.helio(1, "produce", "while", given="\n".join(sent))
    assert site.helio(1, "consume", "before", "--from", "earliest", "-n", "200").splitlines() == sent

    other.power_off()  # a reboot: the same node comes back
    assert "serving here: bookie-3" in site.helio(1, "join")
    names = {actor["name"] for actor in site.status()["actors"]}
    assert {"bookie-3", "broker-2"} <= names
    assert not {"bookie-4", "broker-3"} & names, "it is the same node"
    wait_for(lambda: bool(site.status()["healthy"]), "all serve again", START_SECONDS)

    site.helio(1, "leave")
    assert not other._pids(), "nothing runs there any more"
    status = site.status()
    assert "bookie-3" not in {actor["name"] for actor in status["actors"]}
    assert not site.parts_on(other), "broker-2 goes on at the first machine"
    shutil.rmtree(site.disk() / "data" / "bookie-3")  # its disk is gone
    for topic in ("before", "while"):
        assert site.helio(0, "consume", topic, "--from", "earliest", "-n", "200").splitlines() == sent
    wait_for(lambda: bool(site.status()["healthy"]), "the rest is healthy", START_SECONDS)
    assert status["bookies_available"] == ["bookie-1", "bookie-2"]


def test_a_machine_goes_away_for_some_time_and_comes_back(site: Site) -> None:
    other = site.machines[1]
    at = f"{site.machines[0].address}:{PORT}"
    site.helio(1, "join", at, "--label", "bookie=true,broker=true")
    (bookie,) = (name for name in site.parts_on(other) if name.startswith("bookie-"))
    site.helio(1, "leave", "--keep-data")
    assert not other._pids()
    site.helio(1, "join")
    assert bookie in site.status()["bookies_available"]
    site.helio(1, "down")
    assert not other._pids()
    assert "run helio join first" in site.refused(1, "leave")
    site.helio(1, "join")
    site.helio(1, "leave")
    assert "joined no cluster" in site.refused(1, "leave")


def test_parts_that_left_do_not_come_back_with_the_cluster(site: Site) -> None:
    head, other = site.machines
    at = f"{head.address}:{PORT}"
    sent = [f"line {number}" for number in range(100)]
    site.helio(1, "join", at, "--label", "bookie=true,broker=true")
    left = site.parts_on(other)
    assert {name.rpartition("-")[0] for name in left} == {"bookie", "broker"}
    site.helio(1, "produce", "kept", given="\n".join(sent))
    site.helio(1, "leave")
    site.helio(0, "down")
    assert not head._pids(), "nothing runs any more"
    site.up()
    wait_for(lambda: bool(site.status()["healthy"]), "all serve again", START_SECONDS)
    status = site.status()
    back = {actor["name"]: actor["address"] for actor in status["actors"]}
    assert back.keys().isdisjoint(name for name in left if name.startswith("bookie-"))
    brokers = [address for name, address in back.items() if name.startswith("broker-")]
    assert len(brokers) == 2, "as many as the settings say: the machine that left gave its broker back"
    assert all(head.address in address for address in brokers)
    assert status["bookies_available"] == ["bookie-1", "bookie-2"]
    assert status["bookies_readonly"] == []
    assert site.helio(0, "consume", "kept", "--from", "earliest", "-n", "100").splitlines() == sent
    site.helio(1, "join", at, "--label", "bookie=true,broker=true")
    (bookie,) = (name for name in site.parts_on(other) if name.startswith("bookie-"))
    assert bookie not in left, "a bookie whose data was given up has its name for good"
    site.helio(1, "leave")


def test_the_certificate_of_a_joined_machine_is_renewed_while_it_serves(site: Site, tmp_path: Path) -> None:
    other, stop = site.machines[1], tmp_path / "stop"
    site.helio(1, "join", f"{site.machines[0].address}:{PORT}", "--label", "bookie=true,broker=true")
    parts = site.parts_on(other)
    command = site.command(1, sys.executable, "-c", PUBLISH, str(stop))
    with subprocess.Popen(
        command, env=site.environment(1), cwd=site.directory, stdout=subprocess.PIPE, text=True
    ) as publishing:
        try:
            ends = give_short_certificate(site)
            own = CertificateAuthority(site.disk() / "certificates")
            wait_for(lambda: not is_ending(facts(own)), "the certificate is renewed", START_SECONDS)
            assert set(facts(own).names) >= {other.address, "localhost"}
            wait_for(lambda: datetime.now(UTC) > ends, "the end of the first one", START_SECONDS)
            listening = [address for address in parts.values() if address.startswith("tls://")]
            assert listening
            for address in listening:
                assert shown_by(site, address) == facts(own).ends, address
            assert publishing.poll() is None, "publishing goes on"
        finally:
            stop.touch()
        said, _ = publishing.communicate(timeout=START_SECONDS)
    assert publishing.returncode == 0
    # Both machines' tools find a new way to all parts:
    for number in range(2):
        found = site.helio(number, "consume", "renewed", "--from", "earliest", "-n", said.strip()).splitlines()
        assert found == [str(sent) for sent in range(int(said))]
    assert site.parts_on(other) == parts
    assert site.status()["healthy"]
    site.helio(1, "leave")


def facts(authority: CertificateAuthority) -> CertificateFacts:
    found = authority.facts_of("parts.pem")
    assert found is not None
    return found


def give_short_certificate(site: Site) -> datetime:
    """Give the second machine a certificate that is about to end, and return when it does."""
    own = site.disk() / "certificates"
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heliograph.base.tls.authority.CERTIFICATE_DAYS", SHORT_SECONDS / 86_400)
        authority = CertificateAuthority(site.head_home / "certificates")
        short, _ = authority.sign(request_of(key, facts(CertificateAuthority(own)).names))
    replace_private(own / "parts.key", key_bytes(key))
    replace_private(own / "parts.pem", short)
    return facts(CertificateAuthority(own)).ends


def shown_by(site: Site, address: str) -> datetime:
    """Return the end of the certificate that a listener shows to a new connection, which verifies it."""
    certificates = site.head_home / "certificates"
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "parts.pem", certificates / "parts.key")
    host, _, port = address.removeprefix("tls://").rpartition(":")
    with (
        socket.create_connection((host, int(port)), START_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as connected,
    ):
        shown = connected.getpeercert()
    assert shown is not None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)


def nodes(site: Site) -> dict[str, dict[str, Any]]:
    return {node["address"]: node for node in json.loads(site.helio(0, "nodes", "--json"))["nodes"]}


def test_a_machine_with_another_address_is_given_the_bookie_of_its_disk(site: Site) -> None:
    old, at = site.machines[1], f"{site.machines[0].address}:{PORT}"
    sent = [f"line {number}" for number in range(200)]
    site.helio(1, "join", at, "--label", "bookie=true")
    (bookie,) = site.parts_on(old)
    site.helio(0, "produce", "readdressed", given="\n".join(sent))
    old.power_off()
    site.machines[1] = other = old.readdressed(f"{old.address.rpartition('.')[0]}.77")
    assert "is no address of this machine: give it that one back" in site.refused(1, "join")
    site.helio(1, "join", "--host", other.address)
    (another,) = site.parts_on(other)
    wait_for(lambda: nodes(site)[old.address]["state"] == "AWAY", "Ray notices the loss", START_SECONDS)
    assert nodes(site)[old.address]["parts"] == [bookie]
    assert (nodes(site)[other.address]["state"], another in nodes(site)[other.address]["parts"]) == ("ALIVE", True)
    site.helio(0, "bookies", "place", bookie, "--node", other.address)
    assert site.parts_on(other).keys() == {bookie, another}
    site.helio(0, "bookies", "decommission", another)
    assert site.parts_on(other).keys() == {bookie}
    wait_for(lambda: bool(site.status()["healthy"]), "all serve again", START_SECONDS)
    assert site.helio(0, "consume", "readdressed", "--from", "earliest", "-n", "200").splitlines() == sent

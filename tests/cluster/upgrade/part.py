"""Run by ``test_mixed_versions.py`` with the code of one release or another: one part, or one round of a client.

A part prints its address, and stops in good order when its standard input ends. It uses what both releases have.

    part.py CODE metadata DIRECTORY COPIES
    part.py CODE bookies DIRECTORY URL COUNT
    part.py CODE broker URL
    part.py CODE round ADDRESS FIRST COUNT
    part.py CODE vacancies URL

CODE is the directory that the code has to come from.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

TOPIC = "numbers"
AGAIN = 5  # messages that a producer sends once more
RECEIVE_SECONDS = 60


async def metadata(directory: str, copies: str) -> None:
    """Serve the embedded store. Each entry has so many copies, and two are enough to confirm it."""
    from dataclasses import replace

    from heliograph.metadata import codec, paths
    from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
    from heliograph.metadata.connect import connect_store
    from heliograph.metadata.model import NamespacePolicies, Persistence
    from heliograph.metadata.recipes.cluster_init import initialise

    is_new = not Path(directory).exists()
    server = EmbeddedServer(Path(directory), "127.0.0.1")
    await server.start()
    if is_new:
        store = await connect_store(f"embedded://{server.address}")
        await initialise(store)
        policies = replace(
            NamespacePolicies(), deduplication=True, persistence=Persistence(int(copies), int(copies), 2)
        )
        await store.set(paths.namespace("public", "default"), codec.encode(policies))
        await store.close()
    await _serve(server.address)
    await server.stop()


async def bookies(directory: str, url: str, count: str) -> None:
    """Serve some bookies."""
    from heliograph.actors.bookie.bookie import Bookie
    from heliograph.actors.bookie.config import BookieConfig
    from heliograph.metadata.connect import connect_store

    made = []
    for name in [f"bookie-{number + 1}" for number in range(int(count))]:
        folder = Path(directory) / name
        store = await connect_store(url)
        bookie = Bookie(BookieConfig(name, (folder / "journal",), (folder / "data",)), store)
        await bookie.start()
        made.append((bookie, store))
    await _serve(", ".join(bookie.address for bookie, _ in made))
    for bookie, store in made:
        await bookie.stop()
        await store.close()


async def broker(url: str) -> None:
    """Serve one broker."""
    from heliograph.actors.broker.broker import Broker
    from heliograph.actors.broker.config import BrokerConfig
    from heliograph.actors.ledger.driver import LedgerClient
    from heliograph.metadata.connect import connect_store

    config = BrokerConfig("broker-1", actor_name="broker-1", port=0)
    store = await connect_store(url)
    ledgers = await LedgerClient.start(store, config.ledgers)
    made = Broker(config, store, ledgers, lambda name: made.admin)
    await made.start()
    await _serve(made.service_url)
    await made.stop()
    await ledgers.close()
    await store.close()


async def round_of_client(address: str, first: str, count: str) -> None:
    """Publish, acknowledge every other message, and print what was received and what is stored."""
    import heliograph

    begin, end = int(first), int(first) + int(count)
    client = await heliograph.connect_async(address)
    consumer = await client.consumer(TOPIC, "durable", type="shared", initial_position="earliest")
    repeated = max(0, begin - AGAIN)
    producer = await client.producer(TOPIC, name="one", initial_sequence_id=repeated - 1)
    for number in range(repeated, end):
        await producer.send(b"%d" % number)
    unacknowledged = [number for number in range(begin) if number % 2]
    received = []
    for _ in range(len(unacknowledged) + end - begin):
        message = await consumer.receive(timeout=RECEIVE_SECONDS)
        number = int(message.value)
        received.append(number)
        if number % 2 == 0:
            await consumer.ack(message)
    reader = client.reader(TOPIC, "earliest")
    stored = [int((await reader.receive(timeout=RECEIVE_SECONDS)).value) for _ in range(end)]
    await client.close()
    print(json.dumps({"received": sorted(received), "stored": stored}), flush=True)


async def vacancies(url: str) -> None:
    """Print how many ledgers have a place without a bookie."""
    from heliograph.actors.auditor.ledger_scan import scan_records
    from heliograph.actors.ledger.schedule import is_vacancy
    from heliograph.metadata import paths
    from heliograph.metadata.connect import connect_store
    from heliograph.metadata.model import LedgerMetadata

    store = await connect_store(url)
    records = (await scan_records(store, paths.LEDGERS, 3, LedgerMetadata, 10)).values()
    await store.close()
    print(sum(any(map(is_vacancy, segment.bookies)) for record in records for segment in record.segments), flush=True)


async def _serve(address: str) -> None:
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main(code: str, role: str, *arguments: Any) -> None:
    """Play a role with the code of a directory."""
    import heliograph

    found = Path(heliograph.__file__)
    assert found.is_relative_to(code), f"{found} is not in {code}"
    roles: dict[str, Any] = {
        "metadata": metadata,
        "bookies": bookies,
        "broker": broker,
        "round": round_of_client,
        "vacancies": vacancies,
    }
    asyncio.run(roles[role](*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])

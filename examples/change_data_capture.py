"""Change data capture: a topic has the changes of a table, a Ray Dataset its rows, and a stream the changes since.

    python -m examples.change_data_capture

It starts a Ray and a cluster of its own in temporary directories. In a Ray cluster with ``helio up`` neither is needed,
nor ``gateway=``.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

import heliograph
from heliograph.ray_data import DatasetStream, read_topic, stream_datasets

CUSTOMERS = 50
CHANGES = 1_000
COLUMNS = ("__key", "value")


def changes(seed: int) -> list[tuple[str, dict[str, Any] | None]]:
    """Return changes as a database tells them: the key of a row, and the row; None where it was deleted."""
    chance = random.Random(seed)
    made: list[tuple[str, dict[str, Any] | None]] = []
    for _ in range(CHANGES):
        key = f"customer-{chance.randrange(CUSTOMERS)}"
        made.append((key, None if chance.random() < 0.1 else {"name": key, "balance": chance.randrange(1_000)}))
    return made


def row_of(change: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table from a message."""
    row: dict[str, Any] = json.loads(change["value"])
    return row


def main(directory: str) -> None:
    """Read the table, then follow its changes; compare both with a plain fold."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:
        client.admin.create_topic("customers", 2)
        truth: dict[str, dict[str, Any] | None] = {}

        def publish(seed: int) -> None:
            with client.producer("customers") as producer:
                for key, row in changes(seed):
                    truth[key] = row
                    producer.send(None if row is None else json.dumps(row), key=key)

        def stream() -> DatasetStream:
            return stream_datasets(
                "customers",
                checkpoint=Path(directory, "checkpoint"),
                start="latest",
                until_caught_up=True,
                columns=COLUMNS,
                gateway=cluster.http_url,
            )

        publish(1)
        # First the place from which changes are followed, then the table: no change can be missed between the two.
        followed = [*stream()]
        table = read_topic("customers", latest=True, columns=COLUMNS, gateway=cluster.http_url)
        rows = table.map(row_of)
        state = {row["name"]: row for row in rows.take_all()}
        assert state == {key: row for key, row in truth.items() if row is not None}
        assert not followed
        print(f"{len(state)} rows after {CHANGES} changes; the balances sum to {rows.sum('balance')}")

        publish(2)
        for _, batch in stream():
            for change in batch.take_all():  # a key's changes are in order: they are in one partition
                key = change["__key"].decode()
                if change["value"]:
                    state[key] = json.loads(change["value"])
                else:
                    state.pop(key, None)
        assert state == {key: row for key, row in truth.items() if row is not None}
        print(f"{len(state)} rows after {2 * CHANGES} changes, of which the stream had the second half")
    ray.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(temporary)

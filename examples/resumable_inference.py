"""Batch inference over a topic whose driver is killed on the way: every document has one answer.

    python -m examples.resumable_inference

It starts a Ray and a cluster of its own in temporary directories. In a Ray cluster with ``helio up`` neither is needed,
nor ``gateway=``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import ray

import heliograph
from heliograph.ray_data import read_topic, stream_datasets, write_dataset

DOCUMENTS = 1_000
ENTRY_DOCUMENTS = 20
KILLS = 2


def answered(documents: pa.Table) -> pa.Table:
    """Stands in for a model."""
    texts = [value.decode() for value in documents.column("value").to_pylist()]
    return pa.table({"answer": [f"{text}: {len(text)} characters" for text in texts], "document": texts})


def drive(gateway: str, ray_address: str, directory: Path) -> None:
    """Answer what was not answered yet. A batch that was in hand when the last driver died comes first, with its id."""
    ray.init(address=ray_address, log_to_driver=False)
    stream = stream_datasets(
        "documents",
        checkpoint=directory / "checkpoint",
        entries_per_batch=10,
        until_caught_up=True,
        columns=("value",),
        parallelism=1,  # the same tasks in each run, so that their rows are stored once
        gateway=gateway,
    )
    for batch_id, dataset in stream:
        answers = dataset.map_batches(answered, batch_format="pyarrow", batch_size=None)
        write_dataset(
            answers, "answers", value="answer", key="document", query="model-7", batch_id=batch_id, gateway=gateway
        )
        (directory / f"written-{batch_id}-{os.getpid()}").touch()


def started(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a driver in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "examples.resumable_inference", *arguments], start_new_session=True)


def main(directory: str) -> None:
    """Publish documents, kill the driver twice while it answers, and count the answers."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:
        client.admin.create_topic("documents")
        client.admin.create_topic("answers")
        client.admin.namespaces.set_topic_policies("answers", {"deduplication": True})
        while client.admin.topic_stats("answers")["deduplicationStatus"] != "Enabled":
            time.sleep(0.05)
        with client.producer("documents") as producer:
            for first in range(0, DOCUMENTS, ENTRY_DOCUMENTS):
                producer.send_many([f"document {number}" for number in range(first, first + ENTRY_DOCUMENTS)])
        for _ in range(KILLS):
            before = len(list(Path(directory).glob("written-*")))
            driver = started(cluster.http_url, address, directory)
            while len(list(Path(directory).glob("written-*"))) == before:
                assert driver.poll() is None, "the driver runs"
                time.sleep(0.005)
            os.killpg(driver.pid, signal.SIGKILL)  # before or after its commit
            driver.wait()
        assert started(cluster.http_url, address, directory).wait() == 0
        rows: list[dict[str, Any]] = read_topic("answers", columns=("__key",), gateway=cluster.http_url).take_all()
        assert len(rows) == len({row["__key"] for row in rows}) == DOCUMENTS
        print(f"{len(rows)} answers to {DOCUMENTS} documents by {KILLS + 1} drivers, {KILLS} of which were killed")
    ray.shutdown()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        drive(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    else:
        with TemporaryDirectory() as temporary:
            main(temporary)

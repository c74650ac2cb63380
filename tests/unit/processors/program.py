"""Processes of their own, which tests kill and stop.

python -m tests.unit.processors.program cluster DIRECTORY PORT
python -m tests.unit.processors.program totals ADDRESS NAME INSTANCE
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import heliograph
from heliograph.processors.deployment import ProcessorDeployment

INSTANCES = 2


class Totals(heliograph.Processor):
    """Adds the numbers of each key. It sends each sum, and by a timer the number of messages in between."""

    state = dict

    async def on_message(self, message: Any, context: Any) -> None:
        """Add a number."""
        state = context.state
        state["sum"] = state.get("sum", 0) + int(message.value)
        state["count"] = state.get("count", 0) + 1
        context.send(out_of(message.topic), f"{state['count']} {state['sum']}", key=message.key)


def out_of(topic: str) -> str:
    """Return the output of an input, which may be a partition."""
    return f"{topic.partition('-partition-')[0]}-out"


def totals(client: heliograph.Client, name: str) -> ProcessorDeployment:
    return heliograph.process(name, Totals, name=name, client=client, instances=INSTANCES, commit_every=0.05)


if __name__ == "__main__":
    if sys.argv[1] == "cluster":
        with heliograph.local(Path(sys.argv[2]), port=int(sys.argv[3])):
            threading.Event().wait()
    else:
        with heliograph.connect(sys.argv[2]) as client:
            asyncio.run(totals(client, sys.argv[3]).work(int(sys.argv[4])))

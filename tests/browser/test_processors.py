"""The page of processors: how they are, paused, resumed and deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from playwright.sync_api import expect

import heliograph
from heliograph.standalone.local import LocalCluster
from tests.browser.conftest import apart
from tests.browser.console import Console


class Seen(heliograph.Processor):
    """Counts the messages of each key."""

    state = dict

    def on_message(self, message: Any, context: Any) -> None:
        context.state["count"] = context.state.get("count", 0) + 1
        context.send("seen", context.state["count"], key=message.key)


def run(cluster: LocalCluster) -> None:
    """Have a processor handle three messages of two keys, and end."""
    with cluster.connect() as client:

        async def work() -> None:
            processor = heliograph.process("visits", Seen, name="visitors", client=client, commit_every=0.05)
            working = asyncio.create_task(processor.work())
            async with heliograph.AsyncClient(client.options) as own:
                async with own.producer("visits") as producer:
                    await producer.send_many(["a", "b", "c"], keys=["ann", "bob", "ann"])
                async with own.reader("seen", "earliest") as reader:
                    for _ in range(3):
                        await reader.receive(60)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

        asyncio.run(work())


def test_a_processor_is_seen_paused_and_deleted(console: Console, cluster: LocalCluster) -> None:
    apart(lambda: run(cluster))
    page = console.go("processors")
    row = page.locator("#processors tbody tr", has_text="visitors")
    # state, inputs, instances, messages a second, lag, keys, error
    expect(row.locator("td")).to_have_text(["■ stopped", "visits", "0", "0", "0", "2", ""])
    row.get_by_role("link").click()
    shown = console.page.get_by_role("region", name="Processor visitors", exact=True)
    expect(shown.locator(".facts")).to_contain_text("seen")
    expect(shown.locator("#instances tbody tr td").first).to_have_text("3")  # handled
    console.press("Pause visitors")
    console.confirm("Pause")
    console.said("visitors pauses")
    expect(row.locator("td").first).to_contain_text("paused")
    console.press("Resume visitors")
    console.confirm("Resume")
    console.said("visitors goes on")
    expect(row.locator("td").first).to_contain_text("stopped")
    console.press("Delete visitors")
    console.confirm("Delete", confirm="visitors")
    console.said("visitors is deleted")
    expect(page.locator("#processors tbody")).not_to_contain_text("visitors")

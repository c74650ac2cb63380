"""The page of durable tasks: jobs by state, letters with what failed and why, sent back or deleted."""

from __future__ import annotations

import asyncio
import contextlib

from playwright.sync_api import expect

import heliograph
from heliograph.base.errors import JobFailedError
from heliograph.standalone.local import LocalCluster
from tests.browser.conftest import apart, keep_picture
from tests.browser.console import Console

WAIT_SECONDS = 60.0


def fail(cluster: LocalCluster) -> None:
    """Leave a queue with two letters, by a worker that has ended."""
    with cluster.connect() as client:

        @heliograph.task(queue="mail", client=client, retries=0)
        def send(address: str, copies: int = 1) -> None:
            raise ValueError(f"there is no {address}")

        async def work() -> None:
            working = asyncio.create_task(send.work())
            jobs = [await send.submit(f"{name}@example.org", copies=7, id=f"to-{name}") for name in ("ann", "bob")]
            for job in jobs:
                with contextlib.suppress(JobFailedError):
                    await job.result(timeout=WAIT_SECONDS)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

        asyncio.run(work())


def test_letters_say_what_failed_and_why_and_are_retried_or_purged(console: Console, cluster: LocalCluster) -> None:
    apart(lambda: fail(cluster))
    page = console.go("tasks")
    row = page.locator("#queues tbody tr", has_text="mail")
    expect(row.locator("td")).to_have_text(["0", "0", "2"])  # jobs that wait, workers, letters
    row.get_by_role("link").click()
    queue = console.page.get_by_role("region", name="Queue mail", exact=True)
    expect(queue.locator(".facts")).to_have_text("FAILURE2")
    letter = queue.locator("#letters tbody tr", has_text="to-ann")
    expect(letter.locator("code")).to_contain_text("'ann@example.org'")  # of a pickle, which nobody loaded
    expect(letter.locator("code")).to_contain_text("'copies' 7")
    expect(letter.locator("summary")).to_have_text("ValueError: there is no ann@example.org")
    keep_picture(console.page, "tasks")
    letter.locator("summary").click()
    expect(letter.locator("pre")).to_contain_text("Traceback")
    expect(letter.locator("td").nth(2)).to_have_text("1")  # attempts

    console.press("Retry to-ann")
    console.confirm("Retry")
    console.said("1 submitted again")
    expect(letter).to_have_count(0)
    expect(queue.locator("#jobs tbody tr", has_text="to-ann")).to_contain_text("PENDING")
    expect(row.locator("td")).to_have_text(["1", "0", "1"])
    console.press("Purge to-bob")
    dialog = console.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Purge", exact=True)).to_be_disabled()  # before the name is typed
    console.confirm("Purge", confirm="to-bob")
    console.said("1 deleted")
    expect(queue.locator("#letters tbody")).to_contain_text("nothing failed for good")
    expect(queue.locator("#jobs tbody tr", has_text="to-bob")).to_contain_text("FAILURE")  # its state stays

"""The map of a cluster on machines: what its gateway tells of nodes, racks, changes and repair is on the page.

The cluster of these tests is in one process and has none of them, so they are put into what the gateway answers;
``test_lost_ray.py`` has the real ones.
"""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Route, expect

from tests.browser.console import Console

NODES = [
    {"address": "10.0.0.1", "state": "ALIVE", "since_ms": 1_700_000_000_000},
    {"address": "10.0.0.2", "state": "LEAVING", "since_ms": 1_700_000_000_000},
    {"address": "10.0.0.3", "state": "AWAY", "since_ms": 1_700_000_000_000},
]
WISH = {"arguments": {}, "asked_ms": 1_700_000_000_000, "outcome": {}}
WISHES = [
    WISH | {"kind": "join", "subject": "10.0.0.3", "state": "accepted", "note": "waiting for bookie-5: it is starting"},
    WISH | {"kind": "replace", "subject": "bookie-7", "state": "done", "note": "its copies are back"},
    WISH | {"kind": "scale", "subject": "brokers", "state": "refused", "note": "", "arguments": {"count": "0"}},
]
DEAD = {
    "name": "bookie-7", "kind": "bookie", "state": "MISSING", "since_ms": 1_700_000_000_000, "is_well": False,
    "note": "is not registered in metadata", "address": "", "rack": "r2", "home": "10.0.0.2",
    "seen_ms": 1_700_000_000_000, "free_bytes": 4e9, "total_bytes": 1e10, "used_share": 0.6,
}  # fmt: skip
REPAIR = {
    "ledgers_missing_copies": 9, "ledgers_in_repair": 2, "ledgers_damaged": 0, "ledgers_without_place": 0,
    "ledgers_repaired": 5, "bytes_repaired": 3e6, "bytes_per_second": 1.5e6, "seconds_left": 300,
    "is_paused": False, "last_failure": "",
}  # fmt: skip


def show(console: Console, **repair: Any) -> None:
    """Have the gateway tell of machines, too, from now on."""

    def answer(route: Route) -> None:
        told = route.fetch().json()
        for part in told["parts"]:
            part["home"] = "10.0.0.1"
        told["parts"].append(DEAD)
        route.fulfill(json=told | {"nodes": NODES, "wishes": WISHES, "repair": REPAIR | repair})

    console.page.unroute("**/admin/heliograph/map")
    console.page.route("**/admin/heliograph/map", answer)


def test_nodes_changes_racks_and_the_dead_are_on_the_map(console: Console) -> None:
    show(console)
    page = console.go("map")
    rows = page.locator("#nodes tbody tr")
    for number, text in enumerate((r"10\.0\.0\.1.*alive.*bookie-1, ", r"10\.0\.0\.2.*leaving.*bookie-7", "away")):
        expect(rows.nth(number)).to_contain_text(re.compile(text))
    changes = page.locator("#wishes tbody tr")
    expect(changes.nth(0)).to_contain_text(re.compile(r"join 10\.0\.0\.3.*accepted.*waiting for bookie-5"))
    expect(changes.nth(1)).to_contain_text(re.compile("replace bookie-7.*done.*copies are back"))
    expect(changes.nth(2)).to_contain_text(re.compile("scale brokers 0.*refused"))
    for rack in ("default", "r2"):
        expect(page.get_by_role("heading", name=f"Rack {rack}", exact=True)).to_be_visible()
    dead = page.locator("[data-part=bookie-7]")
    expect(dead).to_contain_text(re.compile("down.*60 % used, 4 GB free when last seen.*takes none.*10.0.0.2"))
    bookie, broker = page.locator("[data-part=bookie-1]"), page.locator("[data-part=broker-1]")
    expect(bookie).to_contain_text(
        re.compile("well.*disk.*used.*entries.*writable.*sync p99.*last seen.*now.*10.0.0.1")
    )
    expect(broker).to_contain_text(re.compile("leader.*processor.*memory.*in.*/s.*out.*/s.*topics.*bundles.*moves"))


def test_repair_tells_bytes_rate_and_time_left_or_what_it_waits_for(console: Console) -> None:
    show(console)
    repair = console.go("map").locator("#repair")
    expect(repair).to_contain_text(
        re.compile(r"under way.*9.*2.*ledgers repaired5bytes copied3 MBrate1\.5 MB/stime left5 min")
    )
    show(console, ledgers_without_place=9, seconds_left=0)
    expect(repair).to_contain_text("9 wait for a bookie that can take copies")
    show(console, is_paused=True)
    expect(repair).to_contain_text("paused")
    expect(repair.get_by_role("button")).to_have_text("Resume repair")

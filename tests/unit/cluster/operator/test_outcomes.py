"""What wishes say at their end, and the brokers of nodes that join."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from heliograph.base.errors import ServiceNotReadyError
from heliograph.cluster import labels
from heliograph.cluster.labels import Node
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.storage import store_wish
from tests.unit.cluster.operator.test_bookies import MOVE, NAME, OWN, Disks
from tests.unit.cluster.operator.test_leaving import operated
from tests.unit.cluster.operator.test_planning import BOTH, NODES, first, seen, with_homes
from tests.unit.cluster.operator.test_wishes import WITHOUT_3, ended


async def test_a_bookie_of_the_release_before_that_was_moved_ends_its_wish() -> None:
    async with operated() as (_operator, cluster, store):
        Disks(cluster, store)
        cluster.answers["part_facts"] = {"node_address": OWN}  # as 0.1.0 answers
        await store_wish(store, MOVE)
        async with asyncio.timeout(10):
            assert (await ended(store, NAME)).outcome["serving"]


async def test_data_that_was_deleted_is_said_so_though_the_look_after_it_failed() -> None:
    async with operated() as (operator, _cluster, store):
        failures = [ServiceNotReadyError("Ray does not answer")]
        refresh = operator._granting._refresh

        async def failing() -> None:
            if failures:
                raise failures.pop()
            await refresh()

        operator._granting._refresh = failing
        await store_wish(store, replace(WITHOUT_3, arguments={"data": wishes.DELETES_DATA}))
        done = await ended(store, "bookie-3")
        assert not failures
        assert done.outcome["data_deleted"]


def test_no_more_brokers_join_than_a_cluster_may_have() -> None:
    roster = replace(rosters.with_configured(first(NODES[:1]), "broker", 2), joining_bring_brokers=True)
    large = [Node(f"10.1.0.{number}", {**BOTH, labels.BROKERS: "16"}) for number in range(1, 64)]
    found = seen(roster, [NODES[0], *large])
    assert len(rosters.staying(found.roster, "broker")) <= rosters.PARTS_MAX


def test_a_node_that_joins_again_while_its_bookie_leaves_brings_its_brokers() -> None:
    roster = replace(rosters.with_configured(first(NODES[:1]), "broker", 2), joining_bring_brokers=True)
    large = Node("10.0.0.2", {**BOTH, labels.BROKERS: "3"})
    roster = with_homes(roster, [NODES[0], large], broker_1="1", broker_2="1").roster
    roster = rosters.with_leaving_node(roster, "10.0.0.2")
    for name in ("broker-3", "broker-4", "broker-5"):
        roster = rosters.without(roster, name)
    roster = rosters.with_leaving(roster, ["bookie-2"])  # it is being emptied
    roster = rosters.without_leaving_node(roster, "10.0.0.2")
    found = seen(roster, [NODES[0], large]).roster
    assert len(rosters.staying(found, "broker")) == 5

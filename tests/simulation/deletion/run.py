"""A run of topics and a namespace that an administrator deletes while clients use them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from typing_extensions import override

from heliograph.actors.broker.admin import admin
from heliograph.actors.broker.balance import orphan_sweep
from heliograph.actors.broker.namespaces import catalog
from heliograph.base import clock as base_clock
from heliograph.metadata import codec, paths
from heliograph.metadata.model import NamespacePolicies, Persistence
from heliograph.metadata.recipes import update_loop
from heliograph.metadata.store import Create, Delete
from tests.simulation.cluster.store import TOPIC
from tests.simulation.deletion.broker import DeletingBroker
from tests.simulation.deletion.checkers import (
    NAMESPACE_PATH,
    PARTITIONED_PATH,
    PLAIN_PATH,
    DeletionCheckers,
)
from tests.simulation.deletion.clients import PARTITIONS, AdministratorClient, make_clients
from tests.simulation.deletion.faults import DELETION_KINDS
from tests.simulation.profile import Plan
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.run import CALM_MS_MAX, Clock, TopicRun
from tests.simulation.topic.upkeep import sweep
from tests.simulation.workload.deletion import collect_garbage

FINISH_SECONDS_MAX = 8.0
PAUSES_MS_MAX = 6_500


class DeletionRun(TopicRun):
    """A run of one plan."""

    checkers_made_by = cast(Any, DeletionCheckers)
    kinds = DELETION_KINDS

    def __init__(self, plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> None:
        super().__init__(plan, is_traced, watched)
        clock = Clock(self.world, self.profile)
        self._constants |= {
            (base_clock, "time"): clock,
            (orphan_sweep, "time"): clock,
            (catalog, "random"): self.world.stream("catalog"),
            (update_loop, "random"): self.world.stream("updates"),
            (admin, "FINISH_SECONDS_MAX"): FINISH_SECONDS_MAX,
        }
        self.marks = cast(DeletionCheckers, self.checkers)
        store, profile = self.store, self.profile
        store.tree.apply(1, [Delete(TOPIC)], 0)
        store.make_parents(NAMESPACE_PATH)
        copies = Persistence(profile.ensemble_size, profile.write_quorum, profile.ack_quorum)
        record = NamespacePolicies(persistence=copies, bundles=1, auto_create_partitions=PARTITIONS)
        store.tree.apply(1, [Create(NAMESPACE_PATH, codec.encode(record))], 0)
        for path in (PLAIN_PATH, PARTITIONED_PATH, f"{paths.BUNDLES}/any"):
            store.make_parents(path)
        self.administrator = AdministratorClient(self.scene, self.marks)
        self.scene.administrator = self.administrator  # type: ignore[attr-defined]

    @override
    def _broker(self, name: str) -> TopicBroker:
        brokers: list[DeletingBroker] = self.nemesis.brokers
        return DeletingBroker(name, self.cluster, self.profile, self.marks, self.administration, lambda: brokers[-1])

    @override
    def _faulty_part(self) -> None:
        self.nemesis.begin()
        make_clients(self.scene)
        while self.world.now < self.profile.faults_until_ms:
            self._step()

    @override
    def _calm_part(self) -> None:
        """Heal everything, let the sweep finish what was begun, then delete all; nothing may be left."""
        deadline = self.world.now + CALM_MS_MAX
        self.world.note("no more faults")
        self.nemesis.end()
        self.administrator.is_over = True
        for broker in self.nemesis.brokers:
            broker.retire()
        last = self.nemesis.last_broker()
        while self.marks.is_marked() or not self.administrator.is_idle:
            self._step_until(deadline, "a deletion that began does not end")
        for client in self.scene.clients:
            if client.link is not None:
                client.link.cut()
            client.crash()
        self._ask(self.administrator.create, deadline)  # with what a creation left that stopped half-way
        for path in (PARTITIONED_PATH, PLAIN_PATH, NAMESPACE_PATH):
            self._ask(lambda then, path=path: self.administrator.delete(path, then), deadline)
        self._do(last, sweep(last), deadline, "the sweep does not end")
        self.marks.at_last()
        self._pass(PAUSES_MS_MAX)  # requests to bookies that stood still come late
        for bookie in self.bookies.values():
            collect_garbage(bookie, self.cluster, cast(Any, self.checkers))
        self._pass(1_000)
        self.marks.at_bookies()

    def _pass(self, milliseconds: int) -> None:
        until = self.world.now + milliseconds
        while self.world.now < until:
            self._step()

    def _ask(self, call: Any, deadline: int) -> None:
        is_done: list[bool] = []
        call(lambda: is_done.append(True))
        while not is_done:
            self._step_until(deadline, "the administrator gets no answer")

"""A run of a topic whose clients are applications that use our own client."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from typing_extensions import override

from heliograph.actors.broker.dedup import dedup
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.client.aio.transport import pool
from tests.simulation.clients.checkers import QUEUES, ClientCheckers
from tests.simulation.clients.faults import CLIENT_KINDS
from tests.simulation.clients.programs import ConsumingProgram, PublishingProgram
from tests.simulation.clients.sites import Site
from tests.simulation.profile import Plan
from tests.simulation.report import Report
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.keeping import Entries
from tests.simulation.topic.run import TopicRun

CHUNKS_MS_MAX = 5_000  # less than consumers keep chunks, as in the product


class ClientRun(TopicRun):
    """A run of one plan."""

    checkers_made_by = ClientCheckers
    kinds = CLIENT_KINDS
    checkers: ClientCheckers

    def __init__(self, plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> None:
        super().__init__(plan, is_traced, watched)
        self.site = Site(self.scene, self.checkers)
        self._constants |= {(pool, "local_socket"): self.site, (dedup, "CHUNKS_MS_MAX"): CHUNKS_MS_MAX}

    @override
    def execute(self) -> Report:
        try:
            return super().execute()
        finally:
            for loop in list(self.site.loops):
                loop.die()

    @override
    def _make_producer(self, name: str) -> None:
        PublishingProgram(name, self.site)

    @override
    def _make_consumer(self, name: str, subscription: str, kind: SubscriptionType) -> None:
        ConsumingProgram(name, subscription, kind, self.site)

    @override
    def _check_clients(self, last: TopicBroker, contents: Entries, deadline: int) -> None:
        self.checkers.check_calls(contents, is_read_once=not self.profile.seeks)
        for consumer in cast(list[ConsumingProgram], self.scene.consumers):
            while consumer.acknowledging:
                self._step_until(deadline, f"{consumer.name} waits for an acknowledgement")
            while (told := self._missing_permits(last, consumer)) != "":
                self._step_until(deadline, told)

    def _missing_permits(self, broker: TopicBroker, consumer: ConsumingProgram) -> str:
        """Return which permits of a consumer neither it nor its broker has, "" if there are none."""
        assert broker.topic is not None, "it serves it"
        most = QUEUES[consumer.subscription]
        there = [one.state for one in broker.topic.subscriptions[consumer.subscription].consumers.values()]
        own = [state.permits for state in there if state.name == consumer.name]
        due, waiting = consumer.permits
        if [most - due - waiting] == own:
            return ""
        return f"{consumer.name} has {due} and {waiting} of {most} permits, the broker {own}"

"""The worlds that a plan can be run in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.simulation.bookie.faults import BOOKIE_KINDS
from tests.simulation.bookie.run import BookieRun
from tests.simulation.clients.faults import CLIENT_KINDS
from tests.simulation.clients.run import ClientRun
from tests.simulation.deletion.faults import DELETION_KINDS
from tests.simulation.deletion.run import DeletionRun
from tests.simulation.faults.fault import KINDS, Fault
from tests.simulation.profile import BOOKIE, CLIENT, DELETION, LEDGER, TOPIC, Plan
from tests.simulation.report import Report
from tests.simulation.run import Run
from tests.simulation.topic.faults import TOPIC_KINDS
from tests.simulation.topic.run import TopicRun

RUNS: dict[str, type[Run] | type[TopicRun] | type[BookieRun]] = {
    LEDGER: Run,
    TOPIC: TopicRun,
    CLIENT: ClientRun,
    BOOKIE: BookieRun,
    DELETION: DeletionRun,
}
KINDS_OF: dict[str, Sequence[Fault]] = {
    LEDGER: KINDS,
    TOPIC: TOPIC_KINDS,
    CLIENT: CLIENT_KINDS,
    BOOKIE: BOOKIE_KINDS,
    DELETION: DELETION_KINDS,
}


def execute(plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> Report:
    return RUNS[plan.world](plan, is_traced, watched).execute()

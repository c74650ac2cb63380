"""A machine's notes of its cluster, and its report. If the notes are wrong, a joined machine asks the head.

Commands that only look import this. So it loads neither Ray nor the cluster's configuration before it needs them.
"""

from __future__ import annotations

from heliograph.base.home import ClusterHome, ClusterState
from heliograph.metadata.operator_records import ClusterReport


def noted_state(home: ClusterHome, *, is_silent: bool = False) -> ClusterState | None:
    """Return what this machine noted of its cluster, as ``ClusterHome.load`` does.

    A machine that joined reads the addresses from the cluster's card if it has none, or if its addresses are
    silent, and notes them.
    """
    state = home.load()
    if state is None or not (state.lacks_addresses or (is_silent and state.node_address)):
        return state
    from heliograph.cluster.joining.view import with_card  # it loads Ray, which a plain install lacks

    return with_card(state, home)


def report_of(state: ClusterState, home: ClusterHome) -> ClusterReport:
    """Return the report of the cluster that this machine noted. Blocks for 30 s at most.

    A machine that joined notes where the gateway was then. If nothing answers, it asks the head where the gateway is.

    Raises:
        ResourceError: the record cannot be read.
    """
    from heliograph.report.asking import ask_report  # it loads asyncio, which no help of a command needs

    found = ask_report(state, home.secret())
    if found.parts or not state.node_address:
        return found
    now = noted_state(home, is_silent=True)
    return found if now is None or now == state else ask_report(now, home.secret())

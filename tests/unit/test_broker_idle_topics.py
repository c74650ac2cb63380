"""What becomes of topics that nobody uses."""

from __future__ import annotations

import pytest

from actors.broker.idle_topics import Fate, Standing, fate_of
from metadata.model import Policies

IDLE = Standing(idle_seconds=100, subscriptions=0, has_backlog=False, has_old_ledgers=False)
READ = Standing(idle_seconds=100, subscriptions=1, has_backlog=False, has_old_ledgers=False)
UNREAD = Standing(idle_seconds=100, subscriptions=1, has_backlog=True, has_old_ledgers=False)
TRIMMED_LATER = Standing(idle_seconds=100, subscriptions=1, has_backlog=False, has_old_ledgers=True)
CAUGHT_UP = "delete_when_subscriptions_caught_up"


@pytest.mark.parametrize(
    ("standing", "policies", "unload_seconds", "fate"),
    [
        (IDLE, Policies(), 0, Fate.KEEP),
        (IDLE, Policies(), 101, Fate.KEEP),
        (IDLE, Policies(), 100, Fate.UNLOAD),
        (UNREAD, Policies(), 100, Fate.UNLOAD),
        (IDLE, Policies(inactive_delete_seconds=100), 100, Fate.DELETE),
        (IDLE, Policies(inactive_delete_seconds=101), 100, Fate.KEEP),  # closed, it would never be deleted
        (READ, Policies(inactive_delete_seconds=100), 0, Fate.KEEP),
        (READ, Policies(inactive_delete_seconds=100), 100, Fate.UNLOAD),
        (READ, Policies(inactive_delete_seconds=100, inactive_delete_mode=CAUGHT_UP), 0, Fate.DELETE),
        (UNREAD, Policies(inactive_delete_seconds=100, inactive_delete_mode=CAUGHT_UP), 0, Fate.KEEP),
        (UNREAD, Policies(message_ttl_seconds=1_000), 100, Fate.KEEP),
        (READ, Policies(message_ttl_seconds=1_000), 100, Fate.UNLOAD),
        (UNREAD, Policies(backlog_quota_seconds=1_000), 100, Fate.KEEP),
        (READ, Policies(subscription_expiration_seconds=1_000), 100, Fate.KEEP),
        (IDLE, Policies(subscription_expiration_seconds=1_000), 100, Fate.UNLOAD),
        (TRIMMED_LATER, Policies(), 100, Fate.KEEP),
    ],
)
def test_the_fate_of_a_topic(standing: Standing, policies: Policies, unload_seconds: float, fate: Fate) -> None:
    assert fate_of(standing, policies, unload_seconds) is fate

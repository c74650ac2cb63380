"""The states of a topic that a broker has loaded (pure)."""

from __future__ import annotations

import enum

from heliograph.base.lifecycle import Lifecycle


class TopicState(enum.Enum):
    """Whether a loaded topic takes producers, consumers and entries."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    LOST = "lost"


TOPIC_LIFECYCLE = Lifecycle(
    {
        TopicState.OPEN: (
            "Clients may publish and subscribe.",
            {TopicState.CLOSING, TopicState.LOST},
        ),
        TopicState.CLOSING: (
            "New producers, consumers and entries are refused; earlier entries are being confirmed.",
            {TopicState.CLOSED, TopicState.LOST},
        ),
        TopicState.CLOSED: ("Everything is durable, and clients were sent to look the topic up again.", ()),
        TopicState.LOST: (
            "Another broker owns the topic, or it cannot be served: nothing is confirmed or dispatched any more.",
            (),
        ),
    }
)

"""The formats that this code writes."""

from __future__ import annotations


def spoken_formats() -> dict[str, int]:
    """Return the newest version of each format that this code writes: on the wire, in metadata and on disks."""
    from heliograph.actors.bookie.journal.format import JOURNAL_VERSION
    from heliograph.actors.bookie.store.checkpoint import TAGGED_VERSION
    from heliograph.actors.bookie.store.entry_log import ENTRY_LOG_VERSION
    from heliograph.actors.broker.cursor.record import RECORD_VERSION
    from heliograph.actors.wire import messages
    from heliograph.metadata.backends.embedded import protocol
    from heliograph.metadata.codec import FORMAT_VERSION
    from heliograph.protocol import frame

    return {
        "bookie protocol": messages.PROTOCOL_VERSION,
        "metadata protocol": protocol.PROTOCOL_VERSION,
        "pulsar protocol": frame.PROTOCOL_VERSION,
        "metadata records": FORMAT_VERSION,
        "journal": JOURNAL_VERSION,
        "entry log": ENTRY_LOG_VERSION,
        "bookie mark": TAGGED_VERSION,
        "cursor records": RECORD_VERSION,
    }

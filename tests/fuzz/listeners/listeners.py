"""All listeners by name."""

from __future__ import annotations

from tests.fuzz.listener import Listener
from tests.fuzz.listeners.bookie import BookieDoorListener, BookieListener
from tests.fuzz.listeners.broker import BrokerDoorListener, BrokerListener
from tests.fuzz.listeners.gateway import HttpListener, WebSocketListener
from tests.fuzz.listeners.metadata import MetadataDoorListener, MetadataListener
from tests.fuzz.listeners.zookeeper import ZooKeeperDoorListener, ZooKeeperListener

LISTENERS: dict[str, type[Listener]] = {
    each.name: each
    for each in (
        BrokerListener, BrokerDoorListener, BookieListener, BookieDoorListener, MetadataListener, MetadataDoorListener,
        ZooKeeperListener, ZooKeeperDoorListener,
        HttpListener, WebSocketListener,
    )
}  # fmt: skip

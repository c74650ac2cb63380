"""Durable, ordered, replicated messaging that lives inside a Ray cluster: the client side.

client = heliograph.connect("pulsar://127.0.0.1:6650")  # inside a Ray cluster: heliograph.connect()
client.producer("flights").send(b"hello")
"""

from heliograph import errors
from heliograph.access import connect, connect_async
from heliograph.aio.client import AsyncClient
from heliograph.aio.consumer import AsyncConsumer
from heliograph.aio.producer import AsyncProducer
from heliograph.aio.reader import AsyncReader
from heliograph.aio.topic import AsyncTopic
from heliograph.client import Client
from heliograph.consumer import Consumer
from heliograph.message import Message
from heliograph.producer import Producer
from heliograph.protocol.message_id import MessageId
from heliograph.reader import Reader
from heliograph.topic import Topic

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTopic",
    "Client",
    "Consumer",
    "Message",
    "MessageId",
    "Producer",
    "Reader",
    "Topic",
    "connect",
    "connect_async",
    "errors",
]

"""Durable, ordered, replicated messaging inside a Ray cluster: the public names of the client.

    client = heliograph.connect("pulsar://127.0.0.1:6650")  # inside a Ray cluster: heliograph.connect()
    client.producer("flights").send(b"hello")

A name is loaded when it is first used: a bookie or a broker, which imports ``heliograph.actors``, does not load the
client. Type checkers read the imports below; ``tests/unit/test_facade.py`` compares them with ``_HOMES``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph.base import errors as errors
    from heliograph.base.clock import with_times as with_times
    from heliograph.client.access import connect as connect
    from heliograph.client.access import connect_async as connect_async
    from heliograph.client.aio.client import AsyncClient as AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer as AsyncConsumer
    from heliograph.client.aio.consumer.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from heliograph.client.aio.consumer.message import Message as Message
    from heliograph.client.aio.consumer.reader import AsyncReader as AsyncReader
    from heliograph.client.aio.producer.interceptors import OutgoingMessage as OutgoingMessage
    from heliograph.client.aio.producer.interceptors import ProducerInterceptor as ProducerInterceptor
    from heliograph.client.aio.producer.producer import AsyncProducer as AsyncProducer
    from heliograph.client.aio.producer.tracing import TracingInterceptor as TracingInterceptor
    from heliograph.client.aio.requests.responder import AsyncResponder as AsyncResponder
    from heliograph.client.aio.table_view import AsyncTableView as AsyncTableView
    from heliograph.client.aio.topic import AsyncTopic as AsyncTopic
    from heliograph.client.options import ClientOptions as ClientOptions
    from heliograph.client.options import ConsumerOptions as ConsumerOptions
    from heliograph.client.options import ProducerOptions as ProducerOptions
    from heliograph.client.options import TableViewOptions as TableViewOptions
    from heliograph.client.schemas.records import AvroSchema as AvroSchema
    from heliograph.client.schemas.records import JsonSchema as JsonSchema
    from heliograph.client.schemas.schema import Schema as Schema
    from heliograph.client.sync.client import Client as Client
    from heliograph.client.sync.consumer import Consumer as Consumer
    from heliograph.client.sync.handle import Responder as Responder
    from heliograph.client.sync.producer import Producer as Producer
    from heliograph.client.sync.reader import Reader as Reader
    from heliograph.client.sync.table_view import TableView as TableView
    from heliograph.client.sync.topic import Topic as Topic
    from heliograph.processors.deployment import process as process
    from heliograph.processors.logic import Processor as Processor
    from heliograph.processors.windows import Window as Window
    from heliograph.protocol.message_id import MessageId as MessageId
    from heliograph.ray_cluster import RayCluster as RayCluster
    from heliograph.ray_cluster import start as start
    from heliograph.standalone.local import LocalCluster as LocalCluster
    from heliograph.standalone.local import local as local
    from heliograph.tasks.task import task as task

_HOMES = {  # the module that defines each public name
    "AsyncClient": "heliograph.client.aio.client",
    "AsyncConsumer": "heliograph.client.aio.consumer.consumer",
    "AsyncProducer": "heliograph.client.aio.producer.producer",
    "AsyncReader": "heliograph.client.aio.consumer.reader",
    "AsyncResponder": "heliograph.client.aio.requests.responder",
    "AsyncTableView": "heliograph.client.aio.table_view",
    "AsyncTopic": "heliograph.client.aio.topic",
    "AvroSchema": "heliograph.client.schemas.records",
    "Client": "heliograph.client.sync.client",
    "ClientOptions": "heliograph.client.options",
    "Consumer": "heliograph.client.sync.consumer",
    "ConsumerInterceptor": "heliograph.client.aio.consumer.interceptors",
    "ConsumerOptions": "heliograph.client.options",
    "JsonSchema": "heliograph.client.schemas.records",
    "LocalCluster": "heliograph.standalone.local",
    "Message": "heliograph.client.aio.consumer.message",
    "MessageId": "heliograph.protocol.message_id",
    "OutgoingMessage": "heliograph.client.aio.producer.interceptors",
    "Producer": "heliograph.client.sync.producer",
    "ProducerInterceptor": "heliograph.client.aio.producer.interceptors",
    "TracingInterceptor": "heliograph.client.aio.producer.tracing",
    "ProducerOptions": "heliograph.client.options",
    "RayCluster": "heliograph.ray_cluster",
    "Reader": "heliograph.client.sync.reader",
    "Responder": "heliograph.client.sync.handle",
    "Schema": "heliograph.client.schemas.schema",
    "TableView": "heliograph.client.sync.table_view",
    "TableViewOptions": "heliograph.client.options",
    "Topic": "heliograph.client.sync.topic",
    "Processor": "heliograph.processors.logic",
    "Window": "heliograph.processors.windows",
    "connect": "heliograph.client.access",
    "connect_async": "heliograph.client.access",
    "local": "heliograph.standalone.local",
    "process": "heliograph.processors.deployment",
    "start": "heliograph.ray_cluster",
    "task": "heliograph.tasks.task",
    "with_times": "heliograph.base.clock",
}

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncResponder",
    "AsyncTableView",
    "AsyncTopic",
    "AvroSchema",
    "Client",
    "ClientOptions",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerOptions",
    "JsonSchema",
    "LocalCluster",
    "Message",
    "MessageId",
    "OutgoingMessage",
    "Processor",
    "Producer",
    "ProducerInterceptor",
    "ProducerOptions",
    "RayCluster",
    "Reader",
    "Responder",
    "Schema",
    "TableView",
    "TableViewOptions",
    "Topic",
    "TracingInterceptor",
    "Window",
    "connect",
    "connect_async",
    "errors",
    "local",
    "process",
    "start",
    "task",
    "with_times",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module when it is first used.

    Raises:
        AttributeError: There is no such public name.
        UnsupportedError: It starts a cluster, and this is Windows.
    """
    if name == "errors":
        return import_module("heliograph.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'heliograph' has no attribute {name!r}")
    if name in ("local", "start"):
        import_module("heliograph.base.version").require_posix()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})

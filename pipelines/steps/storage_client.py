"""A storage client for TransferQueue, the queue of samples of verl: three methods over a store of steps.

TransferQueue hands ``put`` its keys, ``<global index>@<field>``, and keeps what it returns with its metadata, so that
``get`` and ``clear`` are told where the values are. It tells no step: values go to the newest step that began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from heliograph.base.errors import BadRequestError, StepDroppedError, UnsupportedError, ValueNotFoundError
from heliograph.client.access import connect
from heliograph.pipelines.steps.store import StepStore
from heliograph.pipelines.steps.values import Location

CLIENT_NAME = "HeliographStorageClient"
_FACTORIES = ("transfer_queue.storage.clients.base", "transfer_queue.storage.clients.factory")  # of its releases


class HeliographStorageClient:
    """The three methods of TransferQueue's ``StorageKVClient``. They block, also on a thread whose event loop runs:
    its managers call ``get`` and ``clear`` from coroutines.

    Args:
        config: ``name`` of the store (``transfer-queue``), ``address`` of the cluster (None: as ``heliograph.connect``
            finds it), ``token`` or ``token_file``, ``value_bytes_max``, ``get_bytes_max``. Others are not looked at.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        identity = {name: config[name] for name in ("token", "token_file") if config.get(name) is not None}
        bounds = {name: config[name] for name in ("value_bytes_max", "get_bytes_max") if config.get(name) is not None}
        client = connect(config.get("address"), **identity)
        self.store = StepStore(config.get("name") or "transfer-queue", client, **bounds)

    def put(self, keys: list[str], values: list[Any]) -> list[str]:
        """Store values in the newest step, and return their locations."""
        if len(keys) != len(values):
            raise BadRequestError(f"there are {len(keys)} keys and {len(values)} values", field="values")
        given = dict(zip(keys, values, strict=True))
        if len(given) < len(keys):
            raise BadRequestError("a key is named twice", field="keys")
        stored = self.store.run_anywhere(lambda store: store.put(given, None))
        return [stored[key] for key in keys]

    def get(
        self,
        keys: list[str],
        shapes: Any = None,
        dtypes: Any = None,
        custom_backend_meta: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Return values. They are as they were put, so shapes and dtypes are not looked at.

        Raises:
            ValueNotFoundError: a key without a location is in no step.
            StepDroppedError: the step of a value was dropped.
        """
        places = self._places(keys, custom_backend_meta)
        missing = [key for key in keys if key not in places]
        if missing:
            raise ValueNotFoundError(f"no step has a value of {missing[0]!r:.200}", field="keys")
        return self.store.run_anywhere(lambda store: store.get_at([places[key] for key in keys]))

    def clear(self, keys: list[str], custom_backend_meta: Sequence[Any] | None = None) -> None:
        """Delete values; values that are gone already are ignored."""
        by_step: dict[int, list[str]] = {}
        for key, place in self._places(keys, custom_backend_meta).items():
            by_step.setdefault(Location.parse(place).step, []).append(key)
        for step, named in by_step.items():
            try:
                self.store.run_anywhere(lambda store, step=step, named=named: store.clear(named, step))  # type: ignore[misc]
            except StepDroppedError:
                continue

    def _places(self, keys: Sequence[str], given: Sequence[Any] | None) -> dict[str, str]:
        known = dict(zip(keys, given, strict=True)) if given is not None else {}
        found = {key: str(place) for key, place in known.items() if place is not None}
        unknown = [key for key in keys if key not in found]
        return found | (self.store.run_anywhere(lambda store: store.find(unknown)) if unknown else {})


def register() -> None:
    """Make TransferQueue know the client, by the name ``HeliographStorageClient``.

    Raises:
        UnsupportedError: TransferQueue is not installed, or has no registry of clients.
    """
    for module in _FACTORIES:
        try:
            factory = import_module(module).StorageClientFactory
        except (ImportError, AttributeError):
            continue
        factory.register(CLIENT_NAME)(HeliographStorageClient)
        return
    raise UnsupportedError("this needs the Python package 'TransferQueue'", field="transfer_queue")

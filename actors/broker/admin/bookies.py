"""The operations on bookies, the same on every broker: they read and change records that each client of bookies
follows."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

from typing_extensions import override

from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.operator_records import BookieRack
from heliograph.metadata.store import MetadataStore
from heliograph.metadata.znode import is_node_name
from heliograph.operations.bookies import BookieOperations

CHARACTERS_MAX = 255  # of a rack, a group and a host name

R = TypeVar("R")
Json = dict[str, Any]


class BookieAdminService(BookieOperations):
    """The racks of bookies."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    @override
    async def racks(self) -> list[Json]:
        serving, given = await self._serving(), await self._records(paths.BOOKIES_RACKS, BookieRack)
        rows: list[Json] = []
        for bookie_id in sorted({*serving, *given}):
            registered, record = serving.get(bookie_id), given.get(bookie_id)
            rows.append(
                {
                    "bookie_id": bookie_id,
                    "address": "" if registered is None else registered.address,
                    "rack": record.rack if record is not None else "" if registered is None else registered.rack,
                    "group": "default" if record is None else record.group,
                    "hostname": "" if record is None else record.hostname,
                    "is_set": record is not None,
                }
            )
        return rows

    @override
    async def set_rack(self, bookie: str, rack: str, group: str = "default", hostname: str = "") -> None:
        for name, text in (("rack", rack), ("group", group), ("hostname", hostname)):
            if not isinstance(text, str) or len(text) > CHARACTERS_MAX:
                raise BadRequestError(f"{name} is no text of a rack", field=name, limit=f"{CHARACTERS_MAX} characters")
        if not rack.strip("/ "):
            raise BadRequestError(f"{rack!r} is no rack", field="rack", limit="a text such as rack-1")
        if not group:
            raise BadRequestError("a group needs a name", field="group")
        bookie_id = await self._id_of(bookie)
        path, value = paths.bookie_rack(bookie_id), codec.encode(BookieRack(bookie_id, rack, group, hostname))
        with contextlib.suppress(NodeExistsError), needs_session():
            await self._store.create(path, value, parents=True)
            return
        with needs_session():
            await self._store.set(path, value)

    @override
    async def remove_rack(self, bookie: str) -> None:
        try:
            with needs_session():
                await self._store.delete(paths.bookie_rack(await self._id_of(bookie)))
        except NoNodeError:
            raise NotFoundError(f"no rack was set for {bookie}: its registered one holds", field="bookie") from None

    async def _id_of(self, bookie: str) -> str:
        serving = await self._serving()
        for bookie_id, registered in serving.items():
            if bookie in (bookie_id, registered.address):
                return bookie_id
        for path in (paths.bookie_cookie, paths.bookie_rack) if is_node_name(bookie) else ():
            with needs_session():
                if await self._store.exists(path(bookie)) is not None:
                    return bookie
        raise NotFoundError(f"there is no bookie {bookie}", field="bookie", limit=", ".join(sorted(serving)))

    async def _serving(self) -> dict[str, BookieRegistration]:
        readonly = await self._records(paths.BOOKIES_READONLY, BookieRegistration)
        return readonly | await self._records(paths.BOOKIES_AVAILABLE, BookieRegistration)

    async def _records(self, parent: str, kind: type[R]) -> dict[str, R]:
        found: dict[str, R] = {}
        with contextlib.suppress(NoNodeError), needs_session():
            for name in await self._store.children(parent):
                with contextlib.suppress(NoNodeError):  # it is gone since the listing
                    value, _ = await self._store.get(f"{parent}/{name}")
                    found[name] = codec.decode(kind, value)
        return found

"""Bookies that are stopped, copied, and started elsewhere.

Files that are not written again are copied first, so that the bookie is away only briefly and no repair begins. The
roster has the new place, so that every later start is there. The old directories keep their data under names that no
bookie is started on. Whatever fails before the roster is changed, the bookie is started where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from heliograph.actors.bookie.tools import copying
from heliograph.actors.bookie.tools.copying import Ahead, CopyReport
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    HeliographError,
    NotFoundError,
    ResourceError,
    ServiceNotReadyError,
)
from heliograph.base.lifecycle import Lifecycle
from heliograph.cluster import labels
from heliograph.cluster.labels import Place
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.changes import transfer
from heliograph.cluster.operator.departure import require_others
from heliograph.cluster.operator.granting import Outcome, Progress, Way
from heliograph.cluster.operator.ports import OperatorContext
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.operator_records import Wish, WishKind
from heliograph.metadata.recipes.occupancy import registered


class MoveStep(Enum):
    """The next step for a bookie that moves."""

    COPY_AHEAD = "copy ahead"
    COPY = "copy"
    RETIRE = "retire"
    START = "start"


MOVE_LIFE = Lifecycle(
    {
        MoveStep.COPY_AHEAD: ("It serves; entry logs that are not written again are copied.", [MoveStep.COPY]),
        MoveStep.COPY: ("It is held and ended, the rest is copied, and the roster is changed.", [MoveStep.RETIRE]),
        MoveStep.RETIRE: ("The old directories get other names.", [MoveStep.START]),
        MoveStep.START: ("The operator starts it in its new place.", []),
    }
)


class Moving:
    """The wishes to move, stop or place a bookie."""

    def __init__(self, context: OperatorContext) -> None:
        self._store = context.store
        self._cluster = context.cluster
        self._leading = context.leading
        self._change = context.change
        self._wrong = context.wrong
        self._ensemble_size = context.ensemble_size
        self._start_ms = context.start_seconds * 1_000
        self._ahead: dict[str, Ahead] = {}  # by bookies that this operator moves: what was copied while they served

    def ways(self) -> dict[WishKind, Way]:
        """Return how each kind of these wishes is carried out."""
        return {
            WishKind.MOVE: Way(self._begin_move, self._move),
            WishKind.HOLD: Way(self._begin_hold, self._hold),
            WishKind.PLACE: Way(self._begin_place, self._place),
        }

    async def _begin_move(self, wish: Wish) -> Outcome:
        name, options = wish.subject, wish.arguments
        rosters.require_part(await self._leading(), name, "bookie")
        address, journals, data = await self._directories(name)
        to, node = _absolute(options.get("to", "")), options.get("node", address)
        if node != address:
            await self._place_on(node)
        new = [
            *_below(_absolute(options.get("journals", str(to))), name, "journal", len(journals)),
            *_below(to, name, "ledgers", len(data)),
        ]
        if {*journals} & {*data}:
            raise BadRequestError(
                f"{name} has one directory for journal and ledgers: stop it with helio bookies hold, copy the "
                "directory, and name it with helio bookies place",
                field="bookie",
            )
        if node == address:
            copying.require_apart([*journals, *data], new)
        await self._require_others(wish)
        return {
            "bookie": name,
            "step": MoveStep.COPY_AHEAD.value,
            "address": node,
            "journal_directories": _texts(new[: len(journals)]),
            "data_directories": _texts(new[len(journals) :]),
            "old_address": address,
            "old_directories": _texts([*journals, *data]),
        }

    async def _move(self, wish: Wish) -> Progress:
        name, now = wish.subject, wish.outcome
        step = MoveStep(now["step"])
        if step is MoveStep.START:
            return await self._started(wish)
        if step is MoveStep.COPY_AHEAD:
            ahead: Ahead = await self._cluster.on_node(now["address"], transfer.copy_ahead, *_places(now))
            self._ahead[name] = ahead
            size = sum(file.size for _, file in ahead)
            return _next(now, MoveStep.COPY, f"{len(ahead)} entry logs, {size} bytes are copied while {name} serves")
        if step is MoveStep.COPY:
            report = await self._copied(wish)
            note = f"{report.files} files, {report.bytes} bytes are copied and verified"
            return _next(now, MoveStep.RETIRE, note, files=report.files, bytes=report.bytes, placed_ms=wall_ms())
        try:
            old = await self._cluster.on_node(now["old_address"], copying.retire, _places(now)[1])
        except ResourceError as error:  # no bookie would start on them anyway, since their cookies are old
            note = f"the old directories keep their names: {error}. Remove {', '.join(now['old_directories'])}"
            return _next(now, MoveStep.START, note)
        note = f"the old data is in {', '.join(_texts(old))} on {now['old_address']}: remove it when you like"
        return _next(now, MoveStep.START, note, old_directories=_texts(old))

    async def _copied(self, wish: Wish) -> CopyReport:
        """End the bookie, copy the rest, and give it its new place; on a failure, start it at the old one."""
        name, now = wish.subject, wish.outcome
        part = rosters.part_named(await self._leading(), name)
        if [*part.journal_directories] == now["journal_directories"] and not part.is_held:
            return CopyReport(0, 0)  # an operator that has ended since did all that
        if not part.is_held:
            await self._require_others(wish)  # there may be fewer than at the beginning
        await self._change(lambda roster: rosters.with_held(roster, name))
        try:
            await self._cluster.remove(name)
            ahead = self._ahead.pop(name, frozenset())
            report: CopyReport = await self._cluster.on_node(now["address"], transfer.copy, *_places(now), ahead)
            place, rack = await self._place_on(now["address"]) if now["address"] != now["old_address"] else (None, "")
        except (MetadataError, ServiceNotReadyError):  # to be repeated, while the bookie is held
            raise
        except (HeliographError, TimeoutError) as error:
            await self._change(lambda roster: rosters.released(roster, name))
            raise ConflictError(f"{name} is started where it was: {error}", field="to") from error
        directories = now["journal_directories"], now["data_directories"]
        await self._change(
            lambda roster: rosters.released(rosters.with_place(roster, name, *directories, place, rack), name)
        )
        return report

    async def _begin_hold(self, wish: Wish) -> Outcome:
        name, roster = wish.subject, await self._leading()
        rosters.require_part(roster, name, "bookie")
        if not rosters.part_named(roster, name).is_held:
            await self._require_others(wish)
        await self._change(lambda now: rosters.with_held(now, name))
        return {"bookie": name}

    async def _hold(self, wish: Wish) -> Progress:
        await self._cluster.remove(wish.subject)
        return Progress(True, "", {"bookie": wish.subject, "stopped": True})

    async def _begin_place(self, wish: Wish) -> Outcome:
        name, options = wish.subject, wish.arguments
        part = rosters.part_named(await self._leading(), name)
        if name in await registered(self._store):
            raise ConflictError(
                f"{name} serves where it is: helio bookies move copies it elsewhere; to copy it by hand, stop it with "
                "helio bookies hold",
                field="bookie",
            )
        address = options["node"]
        place, rack = await self._place_on(address)
        journals, data = [*part.journal_directories], [*part.data_directories]
        roots = [_absolute(text) for key in ("journals", "at") if (text := options.get(key))]
        if roots or journals:
            places = [root / name for root in dict.fromkeys(roots)] or [*map(Path, dict.fromkeys([*journals, *data]))]
            journals, data = map(_texts, await self._cluster.on_node(address, copying.find_copies, name, places))
        return {
            "bookie": name,
            "address": address,
            "journal_directories": journals,
            "data_directories": data,
            "selector": dict(place.selector),
            "rack": rack,
            "ends": not part.is_held,  # it waits for its old node, or does not start there
        }

    async def _place(self, wish: Wish) -> Progress:
        name, now = wish.subject, wish.outcome
        if "placed_ms" in now:
            return await self._started(wish)
        directories = now["journal_directories"], now["data_directories"]
        place = Place(now["selector"], now["address"])
        await self._change(
            lambda roster: rosters.released(rosters.with_place(roster, name, *directories, place, now["rack"]), name)
        )
        if now["ends"]:
            await self._cluster.remove(name)
        return Progress(False, f"{name} starts on {now['address']}", {**now, "placed_ms": wall_ms()})

    async def _started(self, wish: Wish) -> Progress:
        """Wait until a bookie serves at its present place, or the time for a start is over."""
        name, now = wish.subject, wish.outcome
        is_serving = name in await registered(self._store) and await self._serves_on(name, now["address"])
        is_late = wall_ms() - now["placed_ms"] > self._start_ms
        note = "" if is_serving else self._wrong(name) or f"{name} starts on {now['address']}"
        return Progress(is_serving or is_late, note, {**now, "serving": is_serving})

    async def _serves_on(self, name: str, address: str) -> bool:
        """Return whether a bookie has started on a node, by its own words: its registration may be that of the process
        that was ended."""
        try:
            facts = await self._cluster.ask(name, "part_facts")
        except ServiceNotReadyError:
            return False
        return bool(facts["node_address"] == address and facts.get("address", address))  # 0.1.0 does not tell it

    async def _directories(self, name: str) -> tuple[str, list[Path], list[Path]]:
        """Return the address of a bookie's node, and its journal and data directories, by its own words."""
        try:
            facts = await self._cluster.ask(name, "part_facts")
            found = await self._cluster.ask(name, "directories")
        except ServiceNotReadyError as error:
            raise NotFoundError(
                f"the directories of {name} are not known: {error}. helio bookies place starts it where they are",
                field="bookie",
            ) from error
        return str(facts["node_address"]), [*map(Path, found["journal"])], [*map(Path, found["data"])]

    async def _require_others(self, wish: Wish) -> None:
        if wishes.FORCED not in wish.arguments.values():
            await require_others(self._store, [wish.subject], self._ensemble_size)

    async def _place_on(self, address: str) -> tuple[Place, str]:
        """Return the place that is a node, and its rack.

        Raises:
            NotFoundError: there is no such node.
            ConflictError: it is not labelled for bookies.
        """
        nodes = {node.address: node for node in (await self._cluster.sight({})).nodes}
        if address not in nodes:
            raise NotFoundError(f"Ray has no node at {address}", field="node", limit=", ".join(sorted(nodes)))
        found = nodes[address].labels
        if len(nodes) > 1 and labels.BOOKIE not in found:
            raise ConflictError(
                f"the node at {address} has no label {labels.BOOKIE}, so no bookie is to run there: start it with "
                f"{labels.BOOKIE}={labels.ANY}",
                field="node",
            )
        selector = {labels.BOOKIE: found[labels.BOOKIE]} if labels.BOOKIE in found else {}
        return Place(selector, address), found.get(labels.RACK, "default")


def _next(now: Outcome, to: MoveStep, note: str, **known: object) -> Progress:
    step = MOVE_LIFE.move(MoveStep(now["step"]), to)
    return Progress(False, note, {**now, **known, "step": step.value})


def _places(now: Outcome) -> tuple[str, list[Path], str, list[Path]]:
    """Return the old and the new place of a bookie that moves: address and directories of each."""
    new = [*now["journal_directories"], *now["data_directories"]]
    return now["old_address"], [Path(each) for each in now["old_directories"]], now["address"], [*map(Path, new)]


def _below(root: Path, name: str, leaf: str, count: int) -> list[Path]:
    leaves = [leaf] if count == 1 else [f"{leaf}-{number}" for number in range(1, count + 1)]
    return [root / name / each for each in leaves]


def _absolute(text: str) -> Path:
    if not Path(text).is_absolute():
        raise BadRequestError(f"{text!r} is not absolute", field="to", limit="a path from the root of the node")
    return Path(text)


def _texts(paths: Sequence[Path]) -> list[str]:
    return list(map(str, paths))

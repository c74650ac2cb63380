"""Wishes of the cluster: which others they exclude, and how each goes on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from heliograph.base.errors import BadRequestError, ConflictError, HeliographError, NotFoundError, ResourceError
from heliograph.base.lifecycle import Lifecycle
from heliograph.base.version import heliograph_version
from heliograph.client.discovery import METADATA
from heliograph.metadata.operator_records import Wish, WishKind, WishState

WISH_LIFE = Lifecycle(
    {
        WishState.ASKED: (
            "It is in the metadata; no operator has looked at it yet.",
            [WishState.ACCEPTED, WishState.DONE, WishState.REFUSED],
        ),
        WishState.ACCEPTED: ("The operator carries it out.", [WishState.DONE, WishState.REFUSED]),
        WishState.DONE: ("It is carried out; the record is kept for an hour.", []),
        WishState.REFUSED: ("It was refused; nothing more is done.", []),
    }
)
KEPT_MS = 3_600_000  # a wish that has ended, so that its caller learns the outcome after a reboot
OPEN = (WishState.ASKED, WishState.ACCEPTED)

# Of wishes with different subjects. Two for the same subject exclude each other, unless the later takes its place.
_STOPPING = frozenset({WishKind.MOVE, WishKind.HOLD, WishKind.RESTART})  # which stop bookies that stay
_EXCLUDED: Mapping[WishKind, frozenset[WishKind]] = {
    WishKind.SCALE: frozenset({WishKind.DECOMMISSION, WishKind.LEAVE}),
    WishKind.DECOMMISSION: frozenset({WishKind.SCALE, WishKind.LEAVE}),
    WishKind.LEAVE: frozenset({WishKind.SCALE, WishKind.DECOMMISSION, WishKind.MOVE, WishKind.HOLD, WishKind.MEMBERS}),
    WishKind.MOVE: _STOPPING | {WishKind.LEAVE},
    WishKind.HOLD: _STOPPING | {WishKind.LEAVE},
    WishKind.RESTART: frozenset({WishKind.MOVE, WishKind.HOLD, WishKind.MEMBERS}),
    WishKind.MEMBERS: frozenset({WishKind.LEAVE, WishKind.RESTART, WishKind.REPLACE}),
    WishKind.REPLACE: frozenset({WishKind.MEMBERS}),
}
_WAITING = frozenset({WishKind.REPLACE, WishKind.RECOVER, WishKind.PLACE})  # which may wait for a disk without end
_REPLACED: Mapping[WishKind, frozenset[WishKind]] = {
    WishKind.SCALE: frozenset({WishKind.SCALE}),
    WishKind.DECOMMISSION: _WAITING | {WishKind.KEEP},
    WishKind.KEEP: _WAITING | {WishKind.DECOMMISSION, WishKind.KEEP},
    WishKind.LEAVE: frozenset({WishKind.LEAVE, WishKind.JOIN}),
    WishKind.JOIN: frozenset({WishKind.LEAVE, WishKind.JOIN}),
    WishKind.HOLD: _WAITING,
    WishKind.PLACE: _WAITING,
    WishKind.REPLACE: _WAITING,
    WishKind.RECOVER: frozenset({WishKind.PLACE}),
    WishKind.MEMBERS: frozenset({WishKind.MEMBERS}),
}
DELETES_DATA = "with its data"  # an argument of a bookie's decommission
KEEPS_DATA = "for some time"  # arguments of a node's leave: its bookies are not emptied,
FORCED = "although topics need it"  # even if there are topics with a wider ensemble than the others can hold
ACCEPTS_LOSS = "although entries may be lost"  # an argument of a replacement
PARTS = "parts"  # the subject of a rolling restart
_CHANGED = ("bookie", METADATA)  # kinds with data: they begin the subjects that are such parts, or their number
_REFUSALS: Mapping[str, type[HeliographError]] = {
    kind.__name__: kind for kind in (BadRequestError, ConflictError, NotFoundError, ResourceError)
}


def older_operator(version: str) -> str:
    """Return the message for an operator of an older release that does not know a request."""
    return (
        f"the operator runs an older version: {version}, and this command is of {heliograph_version()}: helio up gives "
        "it the installed one, and helio restart --rolling all parts"
    )


def title(wish: Wish) -> str:
    """Return a wish in words, such as ``decommission bookie-2``."""
    return " ".join([wish.kind.value, wish.subject, *wish.arguments.values()])


def _touched(wish: Wish) -> frozenset[str]:
    """Return which of the kinds with data a wish changes."""
    has_all = wish.kind in (WishKind.LEAVE, WishKind.RESTART)
    return frozenset(kind for kind in _CHANGED if has_all or wish.subject.startswith(kind))


def is_same(one: Wish, other: Wish) -> bool:
    """Return whether two wishes ask for the same change."""
    return (one.kind, one.subject, one.arguments) == (other.kind, other.subject, other.arguments)


def require_possible(wish: Wish, others: Iterable[Wish]) -> None:
    """Check that no open wish excludes another one.

    Raises:
        ConflictError: one does; it names both.
    """
    for other in others:
        if other.state not in OPEN or is_same(wish, other):
            continue
        is_replaced = other.subject == wish.subject and other.kind in _REPLACED.get(wish.kind, ())
        touches = other.subject == wish.subject or (
            other.kind in _EXCLUDED.get(wish.kind, ()) and bool(_touched(other) & _touched(wish))
        )
        if touches and not is_replaced:
            since = datetime.fromtimestamp(other.asked_ms / 1_000)
            raise ConflictError(
                f"{title(wish)!r} and {title(other)!r} exclude each other, and the latter was asked for at "
                f"{since:%Y-%m-%d %H:%M:%S} and is under way: wait for its end (helio status), or take it back",
                field=wish.kind.value,
            )


def refusal_name(error: HeliographError) -> str:
    """Return the class of a refusal that its caller is to get."""
    return next((name for name, kind in _REFUSALS.items() if isinstance(error, kind)), ConflictError.__name__)


def refusal(wish: Wish) -> HeliographError:
    assert wish.state is WishState.REFUSED, "it was refused"
    return _REFUSALS.get(wish.outcome.get("error", ""), ConflictError)(wish.note, field=wish.outcome.get("field"))

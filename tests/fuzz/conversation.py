"""What hostile clients do: steps of several connections, made from a seed. Pure.

A conversation begins as whole messages. ``disturbed`` then cuts, repeats, reorders and damages them, mixes the steps of
the connections, and ends each connection in one of the ways in which clients go.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

SHOWN_BYTES_MAX = 120
PIECES_MAX = 12  # of one message
TURNS_MAX = 6  # of the event loop, between two steps


class Act(enum.Enum):
    """The kinds of steps."""

    SEND = "send"
    REPLY = "reply"  # the listener makes the bytes from what the connection has heard; ``data`` says how
    HEAR = "hear"  # wait a little for an answer
    TURNS = "turns"  # of the event loop
    EOF = "eof"  # the client says no more, and still reads
    CLOSE = "close"
    ABORT = "abort"  # a reset


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the connection ``peer``, which the first of its steps opens."""

    peer: int
    act: Act
    data: bytes = b""
    count: int = 0

    def __str__(self) -> str:
        shown = ""
        if self.data:
            cut = self.data[:SHOWN_BYTES_MAX]
            shown = f" {len(self.data)} bytes: {cut!r}{'...' if len(cut) < len(self.data) else ''}"
        return f"{self.peer} {self.act.value}{f' {self.count}' if self.count else ''}{shown}"


Conversation = tuple[Step, ...]
Message = bytes | tuple[str, bytes]  # bytes, or a reply by its name with the random bytes that decide its form


def disturbed(random: Random, streams: Sequence[Sequence[Message]], *, calm: float = 0.4) -> Conversation:
    """Return a conversation of connections that say these messages, disturbed in transit.

    Args:
        streams: the messages of each connection.
        calm: the share of connections whose messages arrive as they are.
    """
    lanes = [_steps(random, peer, list(messages), calm) for peer, messages in enumerate(streams)]
    mixed: list[Step] = []
    while any(lanes):
        lane = random.choice([lane for lane in lanes if lane])
        count = random.randint(1, 4)
        mixed += lane[:count]
        del lane[:count]
    return tuple(mixed)


def _steps(random: Random, peer: int, messages: list[Message], calm: float) -> list[Step]:
    is_calm = random.random() < calm
    if not is_calm:
        for _ in range(random.randint(1, 3)):
            _rearrange(random, messages)
    steps: list[Step] = []
    for message in messages:
        if isinstance(message, tuple):
            name, form = message
            steps += [Step(peer, Act.HEAR), Step(peer, Act.REPLY, name.encode() + b" " + form)]
        else:
            steps += _sent(random, peer, message, is_calm)
        if random.random() < 0.3:
            steps.append(Step(peer, Act.TURNS, count=random.randint(1, TURNS_MAX)))
        elif random.random() < 0.2:
            steps.append(Step(peer, Act.HEAR))
    if is_calm:
        steps.append(Step(peer, Act.HEAR))
    elif random.random() < 0.3 and steps:
        del steps[random.randrange(len(steps)) :]
        last = steps[-1] if steps else None
        if last is not None and last.act is Act.SEND and len(last.data) > 1:
            steps[-1] = replace(last, data=last.data[: random.randrange(1, len(last.data))])
    if random.random() < 0.2:
        steps += [Step(peer, Act.EOF), Step(peer, Act.HEAR)]
    steps.append(Step(peer, random.choice((Act.CLOSE, Act.ABORT))))
    return steps


def _sent(random: Random, peer: int, message: bytes, is_calm: bool) -> list[Step]:
    if is_calm or random.random() < 0.7 or len(message) < 2:
        return [Step(peer, Act.SEND, message)]
    cuts = sorted({random.randrange(1, len(message)) for _ in range(random.randint(1, PIECES_MAX - 1))})
    steps: list[Step] = []
    for start, end in zip([0, *cuts], [*cuts, len(message)], strict=True):
        steps += [Step(peer, Act.SEND, message[start:end]), Step(peer, Act.TURNS, count=1)]
    return steps


def _rearrange(random: Random, messages: list[Message]) -> None:
    if not messages:
        return
    at = random.randrange(len(messages))
    match random.randrange(7):
        case 0:
            messages.insert(random.randrange(len(messages) + 1), messages[at])
        case 1:
            other = random.randrange(len(messages))
            messages[at], messages[other] = messages[other], messages[at]
        case 2:
            del messages[at]
        case 3 | 4:
            messages[at] = _damaged(random, messages[at])
        case 5:
            messages.insert(at, random.randbytes(random.choice((1, 4, 40, 500))))
        case _:
            message = messages[at]
            if isinstance(message, bytes) and message:
                messages[at] = message[: random.randrange(len(message))]


def _damaged(random: Random, message: Message) -> Message:
    if isinstance(message, tuple) or not message:
        return message
    changed = bytearray(message)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(min(len(changed), random.choice((8, 40, len(changed)))))
        changed[at] = random.choice((changed[at] ^ (1 << random.randrange(8)), 0, 0xFF, random.randrange(256)))
    return bytes(changed)

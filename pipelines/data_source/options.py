"""The options of ``format("heliograph")``: texts by case-insensitive names, checked before anything is read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from heliograph.base.errors import BadRequestError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.data_source.offsets import Offsets, position_of
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import PUBLISH_TIME, Where, where_of
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.reading.columns import OnUnreadable, check_columns
from heliograph.pipelines.reading.registry import USUAL, RegistryRead, check_read
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.pipelines.writing.fields import FIELDS, TOPIC
from heliograph.pipelines.writing.identity import writes_in_doubt
from heliograph.pipelines.writing.records import KINDS
from heliograph.protocol.topic_name import TopicName

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

Bound = Literal["earliest", "latest"] | int | Offsets  # a time in ms since the epoch, or positions

_WHERE = ("topic", "topics", "path", "topicsPattern", "topicsNamespace")
_CLUSTER = (
    "gateway",
    "cluster",
    "token",
    "tokenFile",
    "user",
    "password",
    "tlsCaFile",
    "tlsCertificateFile",
    "tlsKeyFile",
)
_READ = (
    *("columns", "schema", "protobufDescriptorFile", "recursionDepth"),
    *("onUnreadable", "failOnDataLoss", "compacted", "latest", "parallelism"),
    *("startingOffsets", "startingTime", "endingOffsets", "endingTime"),
    *("subscription", "maxEntriesPerTrigger", "maxBytesPerTrigger"),
)
_WRITE = (*(one.option for one in FIELDS.values()), "query", "batchId", "onDoubt", "address")
NAMES = (*_WHERE, *_CLUSTER, *_READ, *_WRITE)
_BY_LOWER = {name.lower(): name for name in NAMES}


@dataclass(frozen=True)
class SourceOptions:
    """Checked options. Options of writing are in ``fields`` (of a message, by column of the frame) and below it."""

    access: ClusterAccess
    topics: tuple[str, ...] = ()
    pattern: str = ""
    pattern_namespace: str = "public/default"
    columns: tuple[str, ...] = ()
    schema: str = ""
    read: RegistryRead = USUAL
    on_unreadable: OnUnreadable = "fail"
    on_data_loss: OnDataLoss = "fail"
    compacted: bool = False
    latest: bool = False
    parallelism: int | None = None
    start: Bound = EARLIEST
    end: Bound = LATEST
    subscription: str = ""
    entries_max: int | None = None  # of a micro-batch
    bytes_max: int | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    batch_id: int = 0
    writes_in_doubt: bool = False
    address: str = ""

    @property
    def where(self) -> Where | None:
        """Return the bounds of times of publication, the second excluded; None: there are none."""
        given = [(PUBLISH_TIME, ">=", self.start)] if isinstance(self.start, int) else []
        given += [(PUBLISH_TIME, "<", self.end)] if isinstance(self.end, int) else []
        return where_of(given)

    @property
    def only_topic(self) -> str:
        """Return the topic, for what works with one alone.

        Raises:
            BadRequestError: not exactly one is named.
        """
        if len(self.topics) != 1 or self.pattern:
            raise BadRequestError("schema=registry needs one topic", field="topic", limit="one topic")
        return self.topics[0]


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options.

    Raises:
        BadRequestError: an option is not known (the nearest name is told), or its value is none.
    """
    texts = _named(given)
    fields = {one.name: texts[one.option] for one in FIELDS.values() if one.option in texts}
    named = sum(name in texts for name in ("topic", "topics", "path", "topicsPattern"))
    if named > 1 or (not named and TOPIC not in fields):
        raise BadRequestError("name one of the options topic, topics and topicsPattern", field="topic")
    topics = [one.strip() for one in texts.get("topics", "").split(",")] if "topics" in texts else []
    topics += [texts[name] for name in ("topic", "path") if name in texts]
    on_unreadable: OnUnreadable = _one_of(texts, "onUnreadable", ("fail", "skip", "null"))  # type: ignore[assignment]
    wanted = [one.strip() for one in texts["columns"].split(",")] if "columns" in texts else None
    schema = _one_of(texts, "schema", ("", *KINDS))
    read = RegistryRead.of(_file(texts, "protobufDescriptorFile"), _count(texts, "recursionDepth") or RECURSION_DEPTH)
    check_read(schema, read)
    return SourceOptions(
        access=_access(texts),
        topics=tuple(str(TopicName.parse(topic)) for topic in topics),
        pattern=texts.get("topicsPattern", ""),
        pattern_namespace=texts.get("topicsNamespace", "public/default"),
        columns=check_columns(wanted, on_unreadable),
        schema=schema,
        read=read,
        on_unreadable=on_unreadable,
        on_data_loss="fail" if _flag(texts, "failOnDataLoss", default=True) else "skip",
        compacted=_flag(texts, "compacted", default=False),
        latest=_flag(texts, "latest", default=False),
        parallelism=_count(texts, "parallelism"),
        start=_bound(texts, "startingOffsets", "startingTime", EARLIEST),
        end=_bound(texts, "endingOffsets", "endingTime", LATEST),
        subscription=texts.get("subscription", ""),
        entries_max=_count(texts, "maxEntriesPerTrigger"),
        bytes_max=_count(texts, "maxBytesPerTrigger"),
        fields=fields,
        query=texts.get("query", ""),
        batch_id=_count(texts, "batchId", least=0) or 0,
        writes_in_doubt=writes_in_doubt(texts.get("onDoubt", "fail")),
        address=texts.get("address", ""),
    )


def _named(given: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, text in given.items():
        known = _BY_LOWER.get(name.lower())
        if known is None:
            nearest = difflib.get_close_matches(name.lower(), _BY_LOWER, 1)
            hint = f"; did you mean {_BY_LOWER[nearest[0]]}?" if nearest else ""
            raise BadRequestError(f"there is no option {name!r}{hint}", field=name, limit=", ".join(NAMES))
        texts[known] = text
    return texts


def _access(texts: Mapping[str, str]) -> ClusterAccess:
    shown: IdentityOptions = {}
    for name, text in (("token", "token"), ("tokenFile", "token_file"), ("user", "user"), ("password", "password")):
        if name in texts:
            shown[text] = texts[name]  # type: ignore[literal-required]
    files = {"tlsCaFile": "tls_ca_file", "tlsCertificateFile": "tls_certificate_file", "tlsKeyFile": "tls_key_file"}
    return ClusterAccess(
        texts.get("cluster"),
        Identity.of(shown),
        texts.get("gateway", "").rstrip("/"),
        {field: texts[name] for name, field in files.items() if name in texts},
    )


def _one_of(texts: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    text = texts.get(name, allowed[0]).lower()
    if text not in allowed:
        raise BadRequestError(f"{name} is {texts[name]!r}", field=name, limit=", ".join(filter(None, allowed)))
    return text


def _flag(texts: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _one_of({name: texts.get(name, str(default))}, name, ("true", "false")) == "true"


def _file(texts: Mapping[str, str], name: str) -> bytes | None:
    """Return what is in a file of this machine that an option names."""
    if name not in texts:
        return None
    try:
        return Path(texts[name]).read_bytes()
    except OSError as error:
        raise BadRequestError(f"{name} cannot be read: {error}", field=name) from error


def _count(texts: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in texts:
        return None
    try:
        count = int(texts[name])
    except ValueError:
        count = least - 1
    if count < least:
        raise BadRequestError(f"{name} is {texts[name]!r}", field=name, limit=f"a number, at least {least}")
    return count


def _bound(texts: Mapping[str, str], offsets: str, time: str, usual: Literal["earliest", "latest"]) -> Bound:
    if offsets in texts and time in texts:
        raise BadRequestError(f"{offsets} and {time} exclude each other", field=time)
    if time in texts:
        return _time(texts[time], time)
    text = texts.get(offsets, usual)
    is_start = usual == "earliest"
    if is_start and text.lower() == EARLIEST:  # nothing is before it, so no read ends there
        return "earliest"
    if text.lower() == LATEST:
        return "latest"
    try:
        found = json.loads(text)
        return {str(topic): position_of(place) for topic, place in found.items()}
    except (ValueError, AttributeError) as error:
        raise BadRequestError(
            f"{offsets} is {text!r}",
            field=offsets,
            limit=f'{"earliest, " * is_start}latest, or {{"<topic or partition>": "ledger:entry"}}',
        ) from error


def _time(text: str, name: str) -> int:
    """Return ms since the epoch, of a number of them or of an ISO 8601 time, which is UTC unless it says otherwise."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequestError(
            f"{name} is {text!r}", field=name, limit="ms since the epoch, or 2026-01-31T12:00:00"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)

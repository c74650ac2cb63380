"""Topic names: ``{persistent|non-persistent}://tenant/namespace/local[-partition-N]``."""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass

from heliograph.base.errors import InvalidTopicNameError

DOMAINS = ("persistent", "non-persistent")
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
TOPIC_NAME_CHARACTERS_MAX = 1024  # the full name
LOCAL_NAME_CHARACTERS_MAX = 255
LOCAL_NAME_BYTES_MAX = 255  # of a new topic, in UTF-8, without the suffix of a partition
TRANSACTION_COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign"

PART_PATTERN = r"[-=:.\w]+"  # tenants and namespaces
# Local names, as documents show it: no control characters and slashes, no blanks at the ends.
LOCAL_NAME_PATTERN = r"^(?!\.{1,2}$)[^\x00-\x20\x7f/](?:[^\x00-\x1f\x7f/]*[^\x00-\x20\x7f/])?$"

_PART = re.compile(PART_PATTERN)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f/\ud800-\udfff]")
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,5})")
_FORM = "{persistent|non-persistent}://tenant/namespace/topic, tenant/namespace/topic or topic"


@dataclass(frozen=True, slots=True)
class TopicName:
    """The parts of a valid topic name."""

    domain: str
    tenant: str
    namespace_name: str
    local_name: str  # with the partition suffix, if there is one
    partition: int  # -1 if this is not a partition

    @staticmethod
    def parse(name: str) -> TopicName:
        """Return the parts of a full name or of one of its short forms.

        Raises:
            InvalidTopicNameError: the name has another form, an empty part, a forbidden character, or is too long.
        """
        if not isinstance(name, str):
            raise InvalidTopicNameError(f"a topic name is a str, not {type(name).__name__}", field="topic")
        return _parse(name)

    @property
    def namespace(self) -> str:
        """The namespace with its tenant, ``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace_name}"

    @property
    def is_persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def partitioned_name(self) -> str:
        """The full name without a partition suffix."""
        local = self.local_name
        if self.partition >= 0:
            local = local.removesuffix(f"-partition-{self.partition}")
        return f"{self.domain}://{self.namespace}/{local}"

    @property
    def is_transaction_coordinator(self) -> bool:
        """Whether clients find the coordinators of transactions by this topic. There is no such topic."""
        return self.partitioned_name == TRANSACTION_COORDINATOR

    def of_partition(self, index: int) -> TopicName:
        assert self.partition < 0, "a partition does not have partitions"
        assert index >= 0, "partitions count from 0"
        return TopicName(self.domain, self.tenant, self.namespace_name, f"{self.local_name}-partition-{index}", index)

    def partitions(self, count: int) -> list[TopicName]:
        """Return the names of ``count`` partitions; for a topic without partitions (count 0), the name itself."""
        return [self.of_partition(index) for index in range(count)] if count > 0 else [self]

    @property
    def bundle_hash(self) -> int:
        """The hash that places the topic in a bundle, 0 to 2**32 - 1: the CRC-32 of its full name."""
        return zlib.crc32(str(self).encode())

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_name}/{self.local_name}"


@functools.lru_cache(maxsize=4096)
def _parse(name: str) -> TopicName:
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        raise InvalidTopicNameError(
            f"the topic name has {len(name)} characters", field="topic", limit=f"{TOPIC_NAME_CHARACTERS_MAX} characters"
        )
    domain, separator, rest = name.partition("://")
    if not separator:
        domain, rest = "persistent", name
    parts = rest.split("/")
    if len(parts) == 1 and not separator:
        parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, rest]
    if len(parts) != 3:
        raise InvalidTopicNameError(f"{name!r} is not a topic name; the forms are {_FORM}", field="topic")
    if domain not in DOMAINS:
        raise InvalidTopicNameError(f"{name!r} starts with neither persistent:// nor non-persistent://", field="domain")
    tenant, namespace, local = parts
    _check_part(name, "tenant", tenant)
    _check_part(name, "namespace", namespace)
    _check_local_name(name, local)
    match = _PARTITION.fullmatch(local)
    return TopicName(domain, tenant, namespace, local, int(match[2]) if match else -1)


def _check_part(name: str, field: str, part: str) -> None:
    if not _PART.fullmatch(part) or part in (".", ".."):
        raise InvalidTopicNameError(
            f"the {field} of {name!r} must consist of letters, digits and any of - _ = : .", field=field
        )


def _check_local_name(name: str, local: str) -> None:
    if not local or local in (".", "..") or local != local.strip() or _UNPRINTABLE.search(local):
        raise InvalidTopicNameError(
            f"the last part of {name!r} is empty, has blanks at an end, or holds a slash or control character",
            field="topic",
        )
    if len(local) > LOCAL_NAME_CHARACTERS_MAX:
        raise InvalidTopicNameError(
            f"the last part of the topic name has {len(local)} characters",
            field="topic",
            limit=f"{LOCAL_NAME_CHARACTERS_MAX} characters",
        )

"""The paths of all nodes of Heliograph, one function for each kind. Paths are absolute below the store's root."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from urllib.parse import quote, unquote

CLUSTER = "/cluster"
RESTORED = f"{CLUSTER}/restored"  # only while a restored backup was not accepted
REVOKED_TOKENS = f"{CLUSTER}/revoked-tokens"  # made with its first child
BOOKIES_AVAILABLE = "/bookies/available"
BOOKIES_READONLY = "/bookies/readonly"
BOOKIES_COOKIES = "/bookies/cookies"
BOOKIES_DRAINING = "/bookies/draining"
BOOKIES_RACKS = "/bookies/racks"  # made with its first child
BOOKIES_FAILED = "/bookies/failed"  # made with its first child
BOOKIES_REPLACED = "/bookies/replaced"  # made with its first child
BROKERS_AVAILABLE = "/brokers/available"
BROKER_LOADS = "/brokers/loads"
BUNDLES = "/brokers/bundles"
LEDGERS = "/ledgers"
LEDGER_IDS = "/ledger-ids"
LEDGER_ID_BASE = f"{LEDGER_IDS}/base"  # only in a store that was filled from another one
NAMESPACES = "/namespaces"
TOPICS = "/topics"
PARTITIONED_TOPICS = "/partitioned-topics"
NON_PERSISTENT_TOPICS = "/non-persistent-topics"
NON_PERSISTENT_PARTITIONED = "/non-persistent-partitioned-topics"
TOPIC_POLICIES = "/topic-policies"
NON_PERSISTENT_POLICIES = "/non-persistent-topic-policies"
SCHEMAS = "/schemas"
UNDERREPLICATED = "/underreplication/ledgers"
UNDERREPLICATION_LOCKS = "/underreplication/locks"
REPAIR_WORKERS = "/underreplication/workers"  # made with its first child
LEDGER_RISKS = "/underreplication/risks"  # made by the first audit
UNDERREPLICATION_DISABLED = "/underreplication/disabled"
SCRUB_DISABLED = "/underreplication/scrub-disabled"
ELECTIONS = "/elections"
LOCKS = "/locks"
ZOOKEEPER = "/zookeeper"  # ZooKeeper's own nodes, which its clients expect
ZOOKEEPER_CONFIG = f"{ZOOKEEPER}/config"
ZOOKEEPER_QUOTA = f"{ZOOKEEPER}/quota"
ENDPOINT_ACLS = "/endpoint-acls"
SETTINGS = "/settings"  # made with its first child
BROKER_SETTINGS = f"{SETTINGS}/brokers"
OPERATOR = "/operator"  # made with its first child
ROSTER = f"{OPERATOR}/roster"
CLUSTER_REPORT = f"{OPERATOR}/cluster"
OPERATOR_REPORT = f"{OPERATOR}/report"  # of release 0.1.0
WISHES = f"{OPERATOR}/wishes"  # made with its first child; a restored backup has none

LEDGERS_PER_DIRECTORY = 10_000  # ids, as ``ledger`` divides them

_LEDGER_PATH = re.compile(rf"{LEDGERS}/([0-9]{{2,15}})/([0-9]{{4}})/L([0-9]{{4}})")
_PIECE = "@piece-"  # quoted names of cursors have no "@"

PERSISTENT_NODES = (
    BOOKIES_AVAILABLE, BOOKIES_READONLY, BOOKIES_COOKIES, BOOKIES_DRAINING, BROKERS_AVAILABLE, BROKER_LOADS, BUNDLES,
    LEDGERS, LEDGER_IDS, NAMESPACES, TOPICS, PARTITIONED_TOPICS, NON_PERSISTENT_TOPICS, NON_PERSISTENT_PARTITIONED,
    TOPIC_POLICIES, NON_PERSISTENT_POLICIES, SCHEMAS, UNDERREPLICATED, UNDERREPLICATION_LOCKS, ELECTIONS,
)  # fmt: skip
_OWN_ROOTS = frozenset(path.split("/")[1] for path in (*PERSISTENT_NODES, CLUSTER, LOCKS, SETTINGS, OPERATOR))


def is_own(path: str) -> bool:
    """Return whether a path is in Heliograph's own tree, and not of another program on the same store."""
    return path.partition("/")[2].partition("/")[0] in _OWN_ROOTS


def _below(parent: str) -> Callable[[str], str]:
    """Return the function from an id to the path of its node below ``parent``."""
    return lambda name: f"{parent}/{name}"


def _of_ledger(parent: str) -> Callable[[int], str]:
    """Return the function from the id of a ledger to the path of its node below ``parent``."""
    return lambda ledger_id: f"{parent}/{ledger_id:010d}"


def _of_topic(parent: str) -> Callable[[str, str, str], str]:
    """Return the function from tenant, namespace and local name of a topic to the path of its node below ``parent``."""
    return lambda tenant, name_space, local_name: f"{parent}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


# By the id of a bookie, a broker or a repair worker, or by the name of an election or a lock.
bookie_available = _below(BOOKIES_AVAILABLE)  # an ephemeral BookieRegistration, while it is writable
bookie_readonly = _below(BOOKIES_READONLY)  # an ephemeral BookieRegistration, while it is read-only
bookie_cookie = _below(BOOKIES_COOKIES)  # a Cookie, which exists as long as the bookie's data counts
bookie_draining = _below(BOOKIES_DRAINING)  # an empty node: the bookie is being decommissioned
bookie_replacement = _below(BOOKIES_REPLACED)  # a BookieReplacement: the bookie may start on empty directories
bookie_start_failure = _below(BOOKIES_FAILED)  # a BookieStartFailure: the bookie does not start
bookie_rack = _below(BOOKIES_RACKS)  # the BookieRack that an operator set
broker_available = _below(BROKERS_AVAILABLE)  # an ephemeral BrokerRegistration
broker_load = _below(BROKER_LOADS)  # an ephemeral BrokerLoad
repair_worker = _below(REPAIR_WORKERS)  # an ephemeral RepairProgress
election = _below(ELECTIONS)  # the parent of the votes
lock = _below(LOCKS)  # the parent of the nodes of the holder and the waiting contenders

underreplicated = _of_ledger(UNDERREPLICATED)  # an UnderReplicatedLedger
underreplication_lock = _of_ledger(UNDERREPLICATION_LOCKS)  # the ephemeral lock of the worker that repairs the ledger

topic = _of_topic(TOPICS)  # a TopicRecord; its children are the cursors and the pieces of its chain
partitioned_topic = _of_topic(PARTITIONED_TOPICS)  # a PartitionedTopicRecord
non_persistent_topic = _of_topic(NON_PERSISTENT_TOPICS)  # a TopicRecord, which says that the topic exists
non_persistent_partitioned = _of_topic(NON_PERSISTENT_PARTITIONED)  # a PartitionedTopicRecord
topic_policies = _of_topic(TOPIC_POLICIES)  # TopicPolicies; of a partitioned topic they hold for all its partitions
non_persistent_policies = _of_topic(NON_PERSISTENT_POLICIES)  # TopicPolicies
schemas = _of_topic(SCHEMAS)  # the SchemaHistory of a topic, partitioned or not; its children are the versions


def bundle(tenant: str, namespace: str, name: str) -> str:
    """Return the path of the ephemeral BundleOwner of one bundle of a namespace; the name is that of its range."""
    return f"{bundles(tenant, namespace)}/{name}"


def bundles(tenant: str, namespace: str) -> str:
    """Return the parent of the owned bundles of a namespace."""
    return f"{BUNDLES}/{_part(tenant)}/{_part(namespace)}"


def tenant(name: str) -> str:
    """Return the path of the TenantRecord, or of an empty node; its children are the namespaces."""
    return f"{NAMESPACES}/{_part(name)}"


def ledger(ledger_id: int) -> str:
    """Return the path of the LedgerMetadata; the digits of the id are split so that no node has too many children."""
    directory, rest = divmod(ledger_id, LEDGERS_PER_DIRECTORY)
    return f"{ledger_directory(directory)}/L{rest:04d}"


def ledger_directory(number: int) -> str:
    """Return the parent of the ledgers whose ids divided by LEDGERS_PER_DIRECTORY give ``number``."""
    digits = f"{number:06d}"
    return f"{LEDGERS}/{digits[:-4]}/{digits[-4:]}"


def ledger_id_of(path: str) -> int:
    """Return the id in a path that ``ledger`` made."""
    high, middle, low = path.split("/")[-3:]
    return int(high + middle + low[1:])


def ledger_id_at(path: str) -> int | None:
    """Return the id of the ledger at any path; None if it is not the path of a ledger."""
    found = _LEDGER_PATH.fullmatch(path)
    if found is None:
        return None
    ledger_id = int("".join(found.groups()))
    return ledger_id if path == ledger(ledger_id) else None  # "007" is not how 7 is written


def namespace(tenant: str, name: str) -> str:
    return f"{NAMESPACES}/{_part(tenant)}/{_part(name)}"


def cursor(topic_path: str, subscription: str) -> str:
    """Return the path of the CursorRecord, below its topic's path."""
    return f"{topic_path}/{_part(subscription)}"


def chain_piece(topic_path: str, number: int) -> str:
    """Return the path of a ChainPiece, below its topic's path. No cursor has such a name."""
    return f"{topic_path}/{_PIECE}{number:010d}"


def is_cursor(child: str) -> bool:
    """Return whether a child of a topic's node is a cursor; the others are pieces of its chain."""
    return not child.startswith(_PIECE)


def schema(history_path: str, version: int) -> str:
    """Return the path of the SchemaRecord of one version, below its topic's SchemaHistory."""
    return f"{history_path}/{version:010d}"


def wish(subject: str) -> str:
    return f"{WISHES}/{_part(subject)}"


def endpoint_acl(path: str) -> str:
    """Return the path of the NodeAcl: the ACL that ZooKeeper endpoints keep for the node at ``path``."""
    return f"{ENDPOINT_ACLS}/{_part(path)}"


def last_part(path: str) -> str:
    """Return the decoded last name of a path."""
    return unquote(path.rsplit("/", 1)[1])


def quoted(text: str) -> str:
    """Return the beginning of the last name of a path whose decoded form begins with ``text``."""
    return quote(text, safe="")


@functools.lru_cache(maxsize=1_024)  # I15: to open a topic names it ten times
def _part(name: str) -> str:
    # A path has no part "." or "..", so these two names are written out.
    return quote(name, safe="") if name.strip(".") or len(name) > 2 else "%2E" * len(name)

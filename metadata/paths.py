"""The paths of all nodes of Heliograph, one function for each kind. Paths are absolute below the store's root."""

from __future__ import annotations

import functools
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

_PIECE = "@piece-"  # quoted names of cursors have no "@"

PERSISTENT_NODES = (
    BOOKIES_AVAILABLE, BOOKIES_READONLY, BOOKIES_COOKIES, BOOKIES_DRAINING, BROKERS_AVAILABLE, BROKER_LOADS, BUNDLES,
    LEDGERS, LEDGER_IDS, NAMESPACES, TOPICS, PARTITIONED_TOPICS, NON_PERSISTENT_TOPICS, NON_PERSISTENT_PARTITIONED,
    TOPIC_POLICIES, NON_PERSISTENT_POLICIES, SCHEMAS, UNDERREPLICATED, UNDERREPLICATION_LOCKS, ELECTIONS,
)  # fmt: skip
_OWN_ROOTS = frozenset(path.split("/")[1] for path in (*PERSISTENT_NODES, CLUSTER, LOCKS, SETTINGS, OPERATOR))


def is_own(path: str) -> bool:
    """Return whether a path is in Heliograph's own tree, so of no other program that uses the same store."""
    return path.partition("/")[2].partition("/")[0] in _OWN_ROOTS


def bookie_available(bookie_id: str) -> str:
    """Return the path of the ephemeral BookieRegistration of a writable bookie."""
    return f"{BOOKIES_AVAILABLE}/{bookie_id}"


def bookie_readonly(bookie_id: str) -> str:
    """Return the path of the ephemeral BookieRegistration of a read-only bookie."""
    return f"{BOOKIES_READONLY}/{bookie_id}"


def bookie_cookie(bookie_id: str) -> str:
    """Return the path of a bookie's Cookie, which exists as long as its data counts."""
    return f"{BOOKIES_COOKIES}/{bookie_id}"


def bookie_draining(bookie_id: str) -> str:
    """Return the path of the empty node that says that a bookie is being decommissioned."""
    return f"{BOOKIES_DRAINING}/{bookie_id}"


def bookie_replacement(bookie_id: str) -> str:
    """Return the path of the BookieReplacement that lets a bookie start on empty directories."""
    return f"{BOOKIES_REPLACED}/{bookie_id}"


def bookie_start_failure(bookie_id: str) -> str:
    """Return the path of the BookieStartFailure of a bookie that does not start."""
    return f"{BOOKIES_FAILED}/{bookie_id}"


def bookie_rack(bookie_id: str) -> str:
    """Return the path of the BookieRack that an operator set for a bookie."""
    return f"{BOOKIES_RACKS}/{bookie_id}"


def broker_available(broker_id: str) -> str:
    """Return the path of the ephemeral BrokerRegistration."""
    return f"{BROKERS_AVAILABLE}/{broker_id}"


def broker_load(broker_id: str) -> str:
    """Return the path of the ephemeral BrokerLoad."""
    return f"{BROKER_LOADS}/{broker_id}"


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


def namespace(tenant: str, name: str) -> str:
    """Return the path of the NamespacePolicies."""
    return f"{NAMESPACES}/{_part(tenant)}/{_part(name)}"


def topic(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the TopicRecord; its children are the cursors and the pieces of its chain."""
    return _of_topic(TOPICS, tenant, name_space, local_name)


def cursor(topic_path: str, subscription: str) -> str:
    """Return the path of the CursorRecord, below its topic's path."""
    return f"{topic_path}/{_part(subscription)}"


def chain_piece(topic_path: str, number: int) -> str:
    """Return the path of a ChainPiece, below its topic's path. No cursor has such a name."""
    return f"{topic_path}/{_PIECE}{number:010d}"


def is_cursor(child: str) -> bool:
    """Return whether a child of a topic's node is a cursor; the others are pieces of its chain."""
    return not child.startswith(_PIECE)


def partitioned_topic(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the PartitionedTopicRecord."""
    return _of_topic(PARTITIONED_TOPICS, tenant, name_space, local_name)


def non_persistent_topic(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the TopicRecord of a non-persistent topic; it says that the topic exists."""
    return _of_topic(NON_PERSISTENT_TOPICS, tenant, name_space, local_name)


def non_persistent_partitioned(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the PartitionedTopicRecord of a non-persistent topic."""
    return _of_topic(NON_PERSISTENT_PARTITIONED, tenant, name_space, local_name)


def topic_policies(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the TopicPolicies of a topic; those of a partitioned topic hold for all its partitions."""
    return _of_topic(TOPIC_POLICIES, tenant, name_space, local_name)


def non_persistent_policies(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the TopicPolicies of a non-persistent topic."""
    return _of_topic(NON_PERSISTENT_POLICIES, tenant, name_space, local_name)


def schemas(tenant: str, name_space: str, local_name: str) -> str:
    """Return the path of the SchemaHistory of a topic, partitioned or not; the versions are its children."""
    return _of_topic(SCHEMAS, tenant, name_space, local_name)


def schema(history_path: str, version: int) -> str:
    """Return the path of the SchemaRecord of one version, below its topic's SchemaHistory."""
    return f"{history_path}/{version:010d}"


def underreplicated(ledger_id: int) -> str:
    """Return the path of the UnderReplicatedLedger."""
    return f"{UNDERREPLICATED}/{ledger_id:010d}"


def underreplication_lock(ledger_id: int) -> str:
    """Return the path of the ephemeral lock of the worker that repairs the ledger."""
    return f"{UNDERREPLICATION_LOCKS}/{ledger_id:010d}"


def repair_worker(name: str) -> str:
    """Return the path of the RepairProgress of a replication worker, an ephemeral node."""
    return f"{REPAIR_WORKERS}/{name}"


def election(name: str) -> str:
    """Return the parent of the votes of one election."""
    return f"{ELECTIONS}/{name}"


def wish(subject: str) -> str:
    """Return the path of the Wish for a subject."""
    return f"{WISHES}/{_part(subject)}"


def endpoint_acl(path: str) -> str:
    """Return the path of the NodeAcl: the ACL that ZooKeeper endpoints keep for the node at ``path``."""
    return f"{ENDPOINT_ACLS}/{_part(path)}"


def lock(name: str) -> str:
    """Return the parent of the nodes of the holder and the waiting contenders of one lock."""
    return f"{LOCKS}/{name}"


def last_part(path: str) -> str:
    """Return the decoded last name of a path."""
    return unquote(path.rsplit("/", 1)[1])


def quoted(text: str) -> str:
    """Return the beginning of the last name of a path whose decoded form begins with ``text``."""
    return quote(text, safe="")


def _of_topic(parent: str, tenant: str, name_space: str, local_name: str) -> str:
    return f"{parent}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


@functools.lru_cache(maxsize=1_024)  # I15: to open a topic names it ten times
def _part(name: str) -> str:
    # A path has no part "." or "..", so these two names are written out.
    return quote(name, safe="") if name.strip(".") or len(name) > 2 else "%2E" * len(name)

"""Every family of nodes that Heliograph keeps, one function each. All paths are absolute below the store's root."""

from __future__ import annotations

from urllib.parse import quote, unquote

CLUSTER = "/cluster"
BOOKIES_AVAILABLE = "/bookies/available"
BOOKIES_READONLY = "/bookies/readonly"
BOOKIES_COOKIES = "/bookies/cookies"
BOOKIES_DRAINING = "/bookies/draining"
BROKERS_AVAILABLE = "/brokers/available"
BROKER_LOADS = "/brokers/loads"
BUNDLES = "/brokers/bundles"
LEDGERS = "/ledgers"
LEDGER_IDS = "/ledger-ids"
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
UNDERREPLICATION_DISABLED = "/underreplication/disabled"
ELECTIONS = "/elections"
LOCKS = "/locks"
ENDPOINT_ACLS = "/endpoint-acls"

PERSISTENT_NODES = (
    BOOKIES_AVAILABLE, BOOKIES_READONLY, BOOKIES_COOKIES, BOOKIES_DRAINING, BROKERS_AVAILABLE, BROKER_LOADS, BUNDLES,
    LEDGERS, LEDGER_IDS, NAMESPACES, TOPICS, PARTITIONED_TOPICS, NON_PERSISTENT_TOPICS, NON_PERSISTENT_PARTITIONED,
    TOPIC_POLICIES, NON_PERSISTENT_POLICIES, SCHEMAS, UNDERREPLICATED, UNDERREPLICATION_LOCKS, ELECTIONS,
)  # fmt: skip


def bookie_available(bookie_id: str) -> str:
    """Ephemeral BookieRegistration of a writable bookie."""
    return f"{BOOKIES_AVAILABLE}/{bookie_id}"


def bookie_readonly(bookie_id: str) -> str:
    """Ephemeral BookieRegistration of a read-only bookie."""
    return f"{BOOKIES_READONLY}/{bookie_id}"


def bookie_cookie(bookie_id: str) -> str:
    """Cookie of a bookie, kept for as long as its data counts."""
    return f"{BOOKIES_COOKIES}/{bookie_id}"


def bookie_draining(bookie_id: str) -> str:
    """Empty: the bookie is to leave the cluster, and its data moves to others."""
    return f"{BOOKIES_DRAINING}/{bookie_id}"


def broker_available(broker_id: str) -> str:
    """Ephemeral BrokerRegistration."""
    return f"{BROKERS_AVAILABLE}/{broker_id}"


def broker_load(broker_id: str) -> str:
    """Ephemeral BrokerLoad."""
    return f"{BROKER_LOADS}/{broker_id}"


def bundle(tenant: str, namespace: str, name: str) -> str:
    """Ephemeral BundleOwner of one bundle of a namespace; the name is that of its range."""
    return f"{bundles(tenant, namespace)}/{name}"


def bundles(tenant: str, namespace: str) -> str:
    """Parent of a namespace's bundles that have an owner."""
    return f"{BUNDLES}/{_part(tenant)}/{_part(namespace)}"


def tenant(name: str) -> str:
    """TenantRecord, or an empty node; its children are its namespaces."""
    return f"{NAMESPACES}/{_part(name)}"


def ledger(ledger_id: int) -> str:
    """LedgerMetadata; the ten-digit (or longer) id is split 2-4-rest so that no node has too many children."""
    digits = f"{ledger_id:010d}"
    return f"{LEDGERS}/{digits[:-8]}/{digits[-8:-4]}/L{digits[-4:]}"


def ledger_id_of(path: str) -> int:
    """The id in a path made by ``ledger``."""
    high, middle, low = path.split("/")[-3:]
    return int(high + middle + low[1:])


def namespace(tenant: str, name: str) -> str:
    """NamespacePolicies."""
    return f"{NAMESPACES}/{_part(tenant)}/{_part(name)}"


def topic(tenant: str, name_space: str, local_name: str) -> str:
    """TopicRecord; its children are its cursors."""
    return f"{TOPICS}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def cursor(topic_path: str, subscription: str) -> str:
    """CursorRecord below its topic's path."""
    return f"{topic_path}/{_part(subscription)}"


def partitioned_topic(tenant: str, name_space: str, local_name: str) -> str:
    """PartitionedTopicRecord."""
    return f"{PARTITIONED_TOPICS}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def non_persistent_topic(tenant: str, name_space: str, local_name: str) -> str:
    """TopicRecord of a topic that stores nothing: it says that there is such a topic."""
    return f"{NON_PERSISTENT_TOPICS}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def non_persistent_partitioned(tenant: str, name_space: str, local_name: str) -> str:
    """PartitionedTopicRecord of a topic that stores nothing."""
    return f"{NON_PERSISTENT_PARTITIONED}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def topic_policies(tenant: str, name_space: str, local_name: str) -> str:
    """TopicPolicies of a topic; of a partitioned one under its own name, for all its partitions."""
    return f"{TOPIC_POLICIES}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def non_persistent_policies(tenant: str, name_space: str, local_name: str) -> str:
    """TopicPolicies of a topic that stores nothing."""
    return f"{NON_PERSISTENT_POLICIES}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def schemas(tenant: str, name_space: str, local_name: str) -> str:
    """What the schema registry keeps of a topic, partitioned or not; the versions are its children."""
    return f"{SCHEMAS}/{_part(tenant)}/{_part(name_space)}/{_part(local_name)}"


def schema(history_path: str, version: int) -> str:
    """SchemaRecord of one version, below its topic's SchemaHistory."""
    return f"{history_path}/{version:010d}"


def underreplicated(ledger_id: int) -> str:
    """UnderReplicatedLedger."""
    return f"{UNDERREPLICATED}/{ledger_id:010d}"


def underreplication_lock(ledger_id: int) -> str:
    """Ephemeral lock of the worker that repairs the ledger."""
    return f"{UNDERREPLICATION_LOCKS}/{ledger_id:010d}"


def election(name: str) -> str:
    """Parent of the votes of one election."""
    return f"{ELECTIONS}/{name}"


def endpoint_acl(path: str) -> str:
    """NodeAcl: the ACL that ZooKeeper endpoints keep for the node at ``path``, whatever family it is of."""
    return f"{ENDPOINT_ACLS}/{_part(path)}"


def lock(name: str) -> str:
    """Parent of those who hold or want one lock."""
    return f"{LOCKS}/{name}"


def last_part(path: str) -> str:
    """The decoded last name of a path."""
    return unquote(path.rsplit("/", 1)[1])


def _part(name: str) -> str:
    return quote(name, safe="")

"""Examples of every command, which its help shows. A test parses each by the command that it belongs to."""

from __future__ import annotations

OF_ALL = (
    "helio dev",
    "echo hello | helio produce orders",
    "helio consume orders -s audit --from earliest -n 1",
)  # of `helio --help` itself
OF_GROUP_MAX = 3  # of its commands, one each, in the help of a group

EXAMPLES: dict[str, tuple[str, ...]] = {
    "dev": ("helio dev", "helio dev --port 0 --http-port 0 --temporary"),
    "up": (
        "helio up",
        "helio up --bookies 5 --brokers 3 --data-directory /disk1/heliograph",
        "RAY_ADDRESS=10.0.0.5:6379 helio up --metadata-url etcd://10.0.0.7:2379/heliograph",
    ),
    "down": ("helio down", "helio down --delete-data"),
    "status": ("helio status", "helio status --wait 60 --json"),
    "scale": ("helio scale bookies 5", "helio scale brokers 3 --wait 60"),
    "restart": ("helio restart --rolling", "helio restart bookie-2 broker-1 --rolling"),
    "logs": ("helio logs --since 10m", "helio logs bookie-1 gateway --level WARNING --follow"),
    "doctor": ("helio doctor", "helio doctor --config /etc/heliograph/cluster.toml --json"),
    "dashboard": ("helio dashboard", "helio dashboard --open"),
    "version": ("helio version", "helio version --json"),
    "produce": (
        "helio produce orders 'one message' 'another one'",
        "echo hello | helio produce orders",
        "helio produce orders --key-separator : --compression zstd < lines.txt",
    ),
    "consume": (
        "helio consume orders -s audit --from earliest -n 1",
        "helio consume orders -s audit --type shared --follow",
    ),
    "perf produce": ("helio perf produce --messages 100000 --size 1024", "helio perf produce load --rate 5000"),
    "perf consume": ("helio perf consume load --messages 100000",),
    "topics create": (
        "helio topics create orders --partitions 4",
        "helio topics create orders --ensemble-size 3 --write-quorum 3 --ack-quorum 2",
    ),
    "topics list": ("helio topics list", "helio topics list public/default --json"),
    "topics delete": ("helio topics delete orders --force",),
    "topics properties": ("helio topics properties orders --set owner=sales",),
    "topics record": ("helio topics record orders",),
    "topics bundle": ("helio topics bundle orders",),
    "topics backlog-size": ("helio topics backlog-size orders 12:0",),
    "topics trim": ("helio topics trim orders",),
    "topics truncate": ("helio topics truncate orders",),
    "topics terminate": ("helio topics terminate orders",),
    "topics grow": ("helio topics grow orders 8",),
    "topics unload": ("helio topics unload orders",),
    "topics lookup": ("helio topics lookup orders",),
    "topics stats": ("helio topics stats orders", "helio topics stats orders-partition-0 --internal --json"),
    "topics compact": ("helio topics compact orders --wait 60",),
    "topics policies get": ("helio topics policies get orders --applied",),
    "topics policies set": ("helio topics policies set orders retention_seconds=3600 deduplication=true",),
    "topics policies remove": ("helio topics policies remove orders retention_seconds",),
    "subscriptions list": ("helio subscriptions list orders",),
    "subscriptions create": ("helio subscriptions create orders audit --position earliest",),
    "subscriptions delete": ("helio subscriptions delete orders audit",),
    "subscriptions skip": (
        "helio subscriptions skip orders audit --count 10",
        "helio subscriptions skip orders audit --older-than 3600",
    ),
    "subscriptions reset": ("helio subscriptions reset orders audit earliest",),
    "subscriptions peek": ("helio subscriptions peek orders audit --count 5",),
    "subscriptions analyze": ("helio subscriptions analyze orders audit",),
    "subscriptions policies": (
        "helio subscriptions policies orders audit --set subscription_dispatch_bytes_per_second=1000000",
    ),
    "subscriptions properties": ("helio subscriptions properties orders audit --set team=finance",),
    "schemas show": ("helio schemas show orders", "helio schemas show orders --version 0"),
    "schemas list": ("helio schemas list orders",),
    "schemas put": ("helio schemas put orders --type AVRO --file order.avsc",),
    "schemas check": ("helio schemas check orders --type AVRO --file order.avsc",),
    "schemas delete": ("helio schemas delete orders",),
    "namespaces list": ("helio namespaces list", "helio namespaces list acme"),
    "namespaces create": ("helio namespaces create acme/shop retention_seconds=3600 --bundles 8",),
    "namespaces delete": ("helio namespaces delete acme/shop --force",),
    "namespaces properties": ("helio namespaces properties acme/shop --add owner=sales",),
    "namespaces clear-backlog": ("helio namespaces clear-backlog acme/shop --subscription audit",),
    "namespaces unsubscribe": ("helio namespaces unsubscribe acme/shop audit",),
    "namespaces bundles": ("helio namespaces bundles acme/shop",),
    "namespaces unload": ("helio namespaces unload acme/shop 0x00000000_0x40000000",),
    "namespaces split": ("helio namespaces split acme/shop 0x00000000_0x40000000",),
    "namespaces policies get": ("helio namespaces policies get public/default",),
    "namespaces policies set": ("helio namespaces policies set public/default retention_seconds=86400",),
    "namespaces policies remove": ("helio namespaces policies remove public/default retention_seconds",),
    "tenants list": ("helio tenants list",),
    "tenants create": ("helio tenants create acme",),
    "tenants delete": ("helio tenants delete acme",),
    "permissions list": ("helio permissions list acme/shop",),
    "permissions grant": ("helio permissions grant acme/shop clerk produce consume",),
    "permissions revoke": ("helio permissions revoke acme/shop clerk",),
    "permissions subscriptions": ("helio permissions subscriptions acme/shop",),
    "permissions subscription": ("helio permissions subscription acme/shop audit auditor-role",),
    "permissions mode": ("helio permissions mode acme/shop Prefix",),
    "brokers list": ("helio brokers list",),
    "brokers load": ("helio brokers load",),
    "brokers drain": ("helio brokers drain broker-2",),
    "brokers undrain": ("helio brokers undrain broker-2",),
    "brokers bundles": ("helio brokers bundles broker-1",),
    "brokers topics": ("helio brokers topics broker-1",),
    "brokers settings": ("helio brokers settings broker-1",),
    "brokers check-quotas": ("helio brokers check-quotas",),
    "bookies decommission": ("helio bookies decommission bookie-4", "helio bookies decommission bookie-4 --cancel"),
    "bookies replace": ("helio bookies replace bookie-2 --empty-disk",),
    "bookies recover": ("helio bookies recover bookie-2",),
    "bookies move": (
        "helio bookies move bookie-2 --to /disk2/heliograph",
        "helio bookies move bookie-2 --already-copied",
    ),
    "bookies scrubs": ("helio bookies scrubs",),
    "bookies inspect": ("helio bookies inspect ~/.heliograph/heliograph/data/bookie-1",),
    "bookies verify": ("helio bookies verify /journal/bookie-1 /data/bookie-1",),
    "bookies list-ledgers": ("helio bookies list-ledgers ~/.heliograph/heliograph/data/bookie-1",),
    "bookies read": ("helio bookies read ~/.heliograph/heliograph/data/bookie-1 --ledger 7 --limit 10",),
    "bookies racks list": ("helio bookies racks list",),
    "bookies racks set": ("helio bookies racks set bookie-4 r2",),
    "bookies racks remove": ("helio bookies racks remove bookie-4",),
    "ledgers under-replicated": ("helio ledgers under-replicated",),
    "ledgers describe": ("helio ledgers describe 7",),
    "ledgers repair-status": ("helio ledgers repair-status --json",),
    "ledgers pause": ("helio ledgers pause --repair --scrubs",),
    "ledgers resume": ("helio ledgers resume --repair",),
    "config show": ("helio config show --all",),
    "config explain": ("helio config explain broker.balance.shed_gap",),
    "config diff": ("helio config diff",),
    "config live": ("helio config live",),
    "config set": ("helio config set bookies 5 --in-file", "helio config set brokerMaxConnections 10000"),
    "config unset": ("helio config unset bookies --in-file",),
    "tokens create-secret-key": ("helio tokens create-secret-key --output secret.key",),
    "tokens create-key-pair": (
        "helio tokens create-key-pair --output-private-key private.key --output-public-key public.key",
    ),
    "tokens create": ("helio tokens create --subject clerk --expiry 30d",),
    "tokens rotate": ("helio tokens rotate", "helio tokens rotate --retire"),
    "tokens validate": ("helio tokens validate --token-file clerk.token",),
    "tokens show": ("helio tokens show --token-file clerk.token",),
    "certs show": ("helio certs show",),
    "certs renew": ("helio certs renew --host broker.example.org",),
    "metadata serve": ("helio metadata serve --url etcd://10.0.0.7:2379/heliograph --zk-port 2181",),
    "metadata migrate": (
        "helio metadata migrate --from ~/.heliograph/heliograph/data/metadata --to etcd://10.0.0.7:2379/heliograph",
    ),
    "backup create": ("helio backup create monday.backup",),
    "backup verify": ("helio backup verify monday.backup",),
    "backup restore": ("helio backup restore monday.backup --to etcd://10.0.0.7:2379/restored",),
    "backup accept": ("helio backup accept",),
}


def examples_of(path: str) -> tuple[str, ...]:
    """Return the examples of a command, or a few of a group's commands; none of what has none.

    Args:
        path: the words behind ``helio``, such as ``topics create``; empty for ``helio`` itself.
    """
    if not path:
        return OF_ALL
    if path in EXAMPLES:
        return EXAMPLES[path]
    return tuple(found[0] for name, found in EXAMPLES.items() if name.startswith(f"{path} "))[:OF_GROUP_MAX]

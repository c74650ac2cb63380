"""Operations on brokers and bundles: ``admin.brokers``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from heliograph.operations.table import Answer, OperationGroup, Right, Scope, operation


class BrokerOperations(OperationGroup, group="brokers"):
    """Bundles are named by their hash range, such as ``0x40000000_0x80000000``."""

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def list(self) -> tuple[Answer, ...]:
        """Return every live broker: ``broker_id``, ``service_url``, ``service_url_tls``, ``actor_name``,
        ``started_ms``, ``is_leader``, ``is_draining``."""

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def loads(self) -> tuple[Answer, ...]:
        """Return the load report of each broker: shares of processor and memory, rates, its busiest bundles."""

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def bundles(self, namespace: str) -> Answer:
        """Return the namespace's ``boundaries``, and its ``bundles``: name, owner (None: unowned), load.

        Raises:
            NamespaceNotFoundError.
        """

    @operation(Scope.BUNDLE, Right.SUPERUSER)
    async def unload_bundle(self, namespace: str, bundle: str) -> bool:
        """Make the owner release a bundle, so that clients look its topics up again; False if it has no owner.

        Raises:
            NotFoundError: there is no such bundle.
        """

    @operation(Scope.NAMESPACE, Right.SUPERUSER)
    async def unload_namespace(self, namespace: str) -> int:
        """Make the owners release all bundles of a namespace; return how many bundles had an owner."""

    @operation(Scope.BUNDLE, Right.SUPERUSER)
    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> tuple[str, ...]:
        """Split a bundle in two at its owner, which goes on serving both halves; return the names of the halves.

        Args:
            boundary: where the second half begins; None: so that half of the loaded topics are on each side.

        Raises:
            NotFoundError: there is no such bundle.
            BadRequestError: the boundary is outside of it.
        """

    @operation(Scope.BROKER, Right.SUPERUSER)
    async def owned(self, broker_id: str) -> dict[str, tuple[str, ...]]:
        """Return the bundles that a broker owns, by namespace.

        Raises:
            NotFoundError: no live broker has that id.
        """

    @operation(Scope.BROKER, Right.SUPERUSER)
    async def topics(self, broker_id: str) -> dict[str, str]:
        """Return the topics that a broker has in memory, each with the name of its bundle; raises as ``owned``."""

    @operation(Scope.BROKER, Right.SUPERUSER)
    async def configuration(self, broker_id: str) -> dict[str, str]:
        """Return the settings that a broker runs with as text, without its secrets; raises as ``owned``."""

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def followed(self, trace_id: str) -> tuple[Answer, ...]:
        """Return the entries of a trace that brokers remember, as ``tracing.sampled_share`` has them do.

        Args:
            trace_id: 32 hexadecimal digits, the middle of a ``traceparent``.

        Returns:
            Of each entry ``topic``, ``message_id`` (``ledger:entry``), and ``steps`` as ``cursors.trace`` has them.

        Raises:
            BadRequestError: that is no trace id.
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def check_quotas(self) -> int:
        """Make every broker check the backlog quotas of its loaded topics now; return how many topics were checked.

        Raises:
            ServiceNotReadyError: some could not be checked, after all others were; names the brokers.
        """

    @operation(Scope.BROKER, Right.SUPERUSER)
    async def drain(self, broker_id: str) -> int:
        """Make a broker release all its bundles and take no more; return how many it released.

        Raises:
            NotFoundError: no live broker has that id.
        """

    @operation(Scope.BROKER, Right.SUPERUSER)
    async def undrain(self, broker_id: str) -> None:
        """Let a broker take bundles again; raises as ``drain``."""

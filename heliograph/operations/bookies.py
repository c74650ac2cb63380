"""Operations on bookies: ``admin.bookies``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from heliograph.base.errors import NotFoundError
from heliograph.operations.table import Answer, OperationGroup, Right, Scope, operation


class BookieOperations(OperationGroup, group="bookies"):
    """A bookie is named by its id, such as ``bookie-1``, or by its address."""

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def racks(self) -> list[Answer]:
        """Return the racks by which placement spreads copies, of each bookie that serves or was given a rack.

        Returns:
            ``bookie_id``, ``address`` (empty: it does not serve now), ``rack``, ``group``, ``hostname``, and ``is_set``
            (an operator set the rack, which overrides the bookie's registered one).
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def set_rack(self, bookie: str, rack: str, group: str = "default", hostname: str = "") -> None:
        """Set the rack of a bookie, for segments and copies placed from now on. Stored entries do not move.

        Args:
            group, hostname: notes, which placement does not read.

        Raises:
            NotFoundError: there is no such bookie.
            BadRequestError: a text is empty, too long or no rack.
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER, fulfilled_by=NotFoundError)
    async def remove_rack(self, bookie: str) -> None:
        """Remove the rack that was set; the bookie's registered rack applies again.

        Raises:
            NotFoundError: none was set.
        """

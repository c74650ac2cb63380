"""Which column of a table holds which field of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.writing.fields import DELIVER_AFTER, DELIVER_AT, FIELDS, VALUE

WHOLE_ROW = "*"
BESIDE = "__"  # how the columns begin that reading gives beside the value


@dataclass(frozen=True)
class WrittenColumns:
    """The columns that are written. It can be pickled.

    Args:
        value: the column of the value; None: the whole row is the value, but for columns that begin with ``__``.
        others: the columns of the other fields, by the names of ``FIELDS``.
    """

    value: str | None = VALUE
    others: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert not set(self.others) - set(FIELDS), "fields are known by name"
        if DELIVER_AT in self.others and DELIVER_AFTER in self.others:
            raise BadRequestError("name deliver_at or deliver_after, not both", field=DELIVER_AFTER)

    @classmethod
    def named(cls, value: str | None, **others: str | None) -> WrittenColumns:
        """Return the columns that a caller names; None: no column holds that field."""
        return cls(value, {name: column for name, column in others.items() if column is not None})

    def check(self, present: Sequence[str], table: str) -> WrittenColumns:
        """Return these columns, if a table has them.

        Args:
            table: the table's name, for the error.

        Raises:
            BadRequestError: there is no such column, or nothing that could be the value.
        """
        for name in ([] if self.value is None else [self.value]) + list(self.others.values()):
            if name not in present:
                raise BadRequestError(f"the {table} has no column {name!r}", field=name, limit=", ".join(present))
        if self.value is None and not self.row(present):
            raise BadRequestError(f"the {table} has no columns for the value", field=VALUE, limit=", ".join(present))
        return self

    def row(self, present: Sequence[str]) -> list[str]:
        """Return the columns of a value that is the whole row."""
        return [name for name in present if not name.startswith(BESIDE)]

    def needed(self, present: Sequence[str]) -> list[str]:
        """Return the columns of a table that are written, each once, in the order of the table."""
        values = self.row(present) if self.value is None else [self.value]
        wanted = {*values, *self.others.values()}
        return [name for name in present if name in wanted]

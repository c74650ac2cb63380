"""What callers hold of something that all share, with bounds for one caller and for all (pure, I15)."""

from __future__ import annotations


class ShareCounter:
    """Count units held per key, such as bytes per client address."""

    def __init__(self) -> None:
        self.total = 0  # 0 <= total
        self._of: dict[str, int] = {}  # no key holds nothing

    def __getitem__(self, key: str) -> int:
        return self._of.get(key, 0)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, key: str, count: int) -> None:
        """Count more, or less where ``count`` is negative."""
        of_key = self._of.get(key, 0) + count
        assert of_key >= 0, "what is given back was taken before"
        self.total += count
        if of_key:
            self._of[key] = of_key
        else:
            self._of.pop(key, None)


class ConnectionLimit:
    """The connections of a listener, in all and of each address.

    Args:
        most: in all.
        of_address_max: of one address.

    Attributes:
        most, of_address_max: may change; connections above a new limit stay.
    """

    def __init__(self, most: int, of_address_max: int) -> None:
        self.most = most
        self.of_address_max = of_address_max
        self._open = ShareCounter()

    @property
    def total(self) -> int:
        return self._open.total

    def admit(self, address: str) -> bool:
        """Count a connection; return False, without counting it, if there are too many."""
        if self._open.total >= self.most or self._open[address] >= self.of_address_max:
            return False
        self._open.add(address, 1)
        return True

    def leave(self, address: str) -> None:
        """Count the end of a connection that was admitted."""
        self._open.add(address, -1)

    def fault(self, address: str) -> str:
        """Return why a connection of the address is refused now, with the numbers; empty if it is not."""
        if self._open.total >= self.most:
            return f"there are {self._open.total} connections, {self.most} may be open"
        if self._open[address] >= self.of_address_max:
            return f"{address} has {self._open[address]} connections, one address may have {self.of_address_max}"
        return ""

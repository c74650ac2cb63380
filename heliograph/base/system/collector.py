"""Python's collector of cycles in a process of ours: what stays is frozen, so that no collection looks at it again.

A full collection takes 0.5 us for each object of the process, and nothing else runs meanwhile: 3.7 s with 50,000 open
topics. Python begins one when a quarter more objects live than at the one before, so a burst of openings is followed by
several. A frozen object is looked at by no collection; it still goes when nothing refers to it, but not if it is a part
of a cycle. So only objects that take their cycles apart when they end are counted here, and others that were frozen
beside them and ended in a cycle are found by a full collection after a number of ends.
"""

from __future__ import annotations

import gc

# From one full collection to the next at least: objects of Python that are new and live.
COLLECT_AFTER = (2_000, 10, 50)
FREEZE_AFTER = 100  # objects of a holder that were made since the last freezing and live: 10 to 20 ms for topics  # I24
THAW_LEAST = 5_000  # ends of frozen objects of a holder, before all is collected once; more if it holds more

_is_ours = False  # whether this process has nothing but parts of ours, so that its collector is for us to set


def take_over() -> None:
    """Freeze what lives now: the objects of imports and of Ray, and the parts that have started. Set the thresholds."""
    global _is_ours
    _is_ours = True
    _freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _freeze() -> None:
    gc.collect()  # what is garbage now would be frozen, too
    gc.freeze()


class FrozenHolder:
    """Counts the large objects of one kind that a part holds, such as open topics, and freezes them in bursts.

    Attributes:
        freezes, thaws: how often that was done.
    """

    def __init__(self) -> None:
        self.freezes = self.thaws = 0
        self._fresh: set[int] = set()  # ids of those that were made since the last freezing; at most FREEZE_AFTER
        self._live = 0  # frozen ones that are held
        self._ended = 0  # frozen ones that have ended since the last full collection

    def made(self, held: object) -> None:
        """Note that an object is held from now on."""
        self._fresh.add(id(held))
        if len(self._fresh) < FREEZE_AFTER:
            return
        self._live += len(self._fresh)
        self._fresh.clear()
        if _is_ours:
            self.freezes += 1
            _freeze()

    def ended(self, held: object) -> None:
        """Note that an object that was held is not any more."""
        if id(held) in self._fresh:
            self._fresh.remove(id(held))
            return
        self._live -= 1
        self._ended += 1
        if self._ended >= max(THAW_LEAST, 2 * self._live) and _is_ours:
            self._ended = 0
            self.thaws += 1
            gc.unfreeze()
            _freeze()

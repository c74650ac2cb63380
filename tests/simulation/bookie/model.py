"""What a bookie's clients were told, and what its storage may therefore never forget."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError, EntryDamagedError
from heliograph.actors.wire.entry import decode_entry, encode_entry
from heliograph.actors.wire.messages import Status
from tests.simulation.checkers.judge import Judge

ENTRIES_LOOKED_AT = 40  # at each start; at the end it is all of them
NEGATIVES = (Status.NO_ENTRY, Status.NO_LEDGER)


@dataclass
class LedgerModel:
    """One ledger.

    Attributes:
        tried: entries that were sent, whatever became of them.
        stored: entries of which the bookie said that they are durable.
        lac_tried: the highest LAC that was ever sent, in an entry or by itself.
        lac_stored: the highest one that is durable.
        fence_tried: a fencing read was sent.
        is_fenced: one was answered.
        is_removed: metadata does not have the ledger any more.
    """

    ledger_id: int
    tried: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    lac_tried: int = -1
    lac_stored: int = -1
    fence_tried: bool = False
    is_fenced: bool = False
    is_removed: bool = False
    next_entry_id: int = 0


class Model:
    """All ledgers, and the checks."""

    def __init__(self, judge: Judge) -> None:
        self.ledgers: dict[int, LedgerModel] = {}
        self._judge = judge
        self.payloads: dict[tuple[int, int], bytes] = {}

    def data(self, ledger_id: int, entry_id: int, last_add_confirmed: int) -> bytes:
        """Return an entry as clients send it. Its copies differ in their LACs only."""
        payload = self.payloads[ledger_id, entry_id]
        return encode_entry(ledger_id, entry_id, last_add_confirmed, 10 * entry_id, payload)

    def check_added(self, model: LedgerModel, status: Status, *, is_recovery: bool) -> None:
        """Check the outcome of putting an entry into the cache."""
        name = f"ledger {model.ledger_id}"
        if status is Status.OK:
            self._judge.require(is_recovery or not model.is_fenced, "I4", f"{name} took an add after its fence")
        if status is Status.FENCED:
            may = model.is_removed or (model.fence_tried and not is_recovery)
            self._judge.require(may, "I19", f"{name} refuses adds, and nobody fenced it")

    def check_found(self, model: LedgerModel, entry_id: int, found: bytes) -> None:
        """Check an entry that was read."""
        name = f"{model.ledger_id}:{entry_id}"
        self._judge.require(entry_id in model.tried, "I19", f"{name} is there, and nobody sent it")
        entry = decode_entry(found)
        is_right = (entry.ledger_id, entry.entry_id) == (model.ledger_id, entry_id)
        is_right = is_right and bytes(entry.payload) == self.payloads[model.ledger_id, entry_id]
        self._judge.require(is_right, "I1", f"{name} is not as it was stored")

    def check_missing(self, model: LedgerModel, entry_id: int, what: str, *, was_stored: bool) -> None:
        """Check that an entry that is not found was never acknowledged."""
        may = model.is_removed or not was_stored
        self._judge.require(may, "I6", f"{model.ledger_id}:{entry_id} was acknowledged, and is {what}")

    def check_start(self, storage: BookieStorage, random: Random, *, is_damaged: bool, is_complete: bool) -> None:
        """Check everything that a start has brought back."""
        for model in self.ledgers.values():
            self._check_ledger(storage, model)
        for ledger_id in storage.ledgers.ids():
            self._judge.require(ledger_id in self.ledgers, "I19", f"ledger {ledger_id} is there, and nobody used it")
        stored = [(m, entry_id) for m in self.ledgers.values() if not m.is_removed for entry_id in sorted(m.stored)]
        for model, entry_id in stored if is_complete else random.sample(stored, min(len(stored), ENTRIES_LOOKED_AT)):
            self._check_entry(storage, model, entry_id, is_damaged=is_damaged)

    def _check_ledger(self, storage: BookieStorage, model: LedgerModel) -> None:
        ledger_id, name = model.ledger_id, f"ledger {model.ledger_id}"
        is_deleted = ledger_id in storage.ledgers.deleted
        self._judge.require(model.is_removed or not is_deleted, "I14", f"{name} was deleted, and metadata has it")
        if is_deleted:
            return
        state = storage.ledgers.get(ledger_id)
        is_fenced = state is not None and state.fence.is_durable
        self._judge.require(is_fenced or not model.is_fenced, "I4", f"the fence of {name} is gone")
        self._judge.require(model.fence_tried or not is_fenced, "I19", f"{name} is fenced, and nobody fenced it")
        lac = storage.last_add_confirmed(ledger_id)
        self._judge.require(lac <= model.lac_tried, "I19", f"{name} has LAC {lac}, {model.lac_tried} was sent")
        if not model.is_removed:
            self._judge.require(lac >= model.lac_stored, "I2", f"{name} has LAC {lac}, {model.lac_stored} was stored")

    def _check_entry(self, storage: BookieStorage, model: LedgerModel, entry_id: int, *, is_damaged: bool) -> None:
        data = storage.cached(model.ledger_id, entry_id)
        if data is None:
            try:
                found = storage.read_disk(model.ledger_id, entry_id)
            except (BookieStorageError, EntryDamagedError) as error:
                self._judge.require(is_damaged, "I1", f"{model.ledger_id}:{entry_id} cannot be read: {error}")
                return
            data = found[0][1] if found else None
        if data is None:
            self.check_missing(model, entry_id, "gone after a start", was_stored=True)
        else:
            self.check_found(model, entry_id, bytes(data))

"""Files of every version that was ever written are still read."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.files import used_ids, used_path
from heliograph.actors.bookie.journal.format import Kind, decode_file_header
from heliograph.actors.bookie.journal.scan import scan_bytes
from heliograph.actors.bookie.recovery.opening import open_storage
from heliograph.actors.bookie.store.checkpoint import KEPT_VERSION, PLAIN_VERSION, TAGGED_VERSION, decode_mark
from heliograph.actors.bookie.store.entry_log import read_map
from heliograph.actors.bookie.tools import inspect
from heliograph.actors.bookie.tools.offline import find_folders
from heliograph.actors.wire.entry import decode_entry
from tests.bookie_samples.generate import (
    DELETED,
    EXPLICIT_LAC,
    FENCED,
    FENCED_IN_JOURNAL,
    FLUSHED,
    FOLDER,
    IN_JOURNAL,
    KEPT,
    LAC,
    LIMBO,
    VERSION,
    WRITTEN_ONCE,
    kept_payload,
    payload,
    sample,
)
from tests.cluster.support.bookie_peer import small_config

VERSIONS = sorted(int(path.name[1:].split(".")[0]) for path in FOLDER.glob("v*.tar.gz"))


@pytest.fixture(params=VERSIONS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(sample(request.param)) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_there_is_a_sample() -> None:
    assert list(range(1, VERSION + 1)) == VERSIONS
    assert sum(sample(version).stat().st_size for version in VERSIONS) < 64 << 10


def test_each_file_is_read_by_itself(home: Path, request: pytest.FixtureRequest) -> None:
    has_seals = request.node.callspec.params["home"] > 1
    disk = RealDisk()
    folders = find_folders([home])
    assert folders.cookie is not None
    layout = 2 if request.node.callspec.params["home"] > 2 else 1
    assert (folders.cookie.bookie_id, folders.cookie.layout_version, folders.damage) == ("b1", layout, [])
    has_kept = request.node.callspec.params["home"] > 3
    mark = decode_mark((home / "data" / "mark").read_bytes(), "mark")
    is_tagged = request.node.callspec.params["home"] > 4
    assert mark.version == (TAGGED_VERSION if is_tagged else KEPT_VERSION if has_kept else PLAIN_VERSION)
    assert mark.checkpoint == 2
    assert bool(list((home / "data").glob("*.kept"))) == has_kept
    kinds: set[Kind] = set()
    seals = 0
    for file_id in used_ids(disk, home / "journal"):
        content = used_path(home / "journal", file_id).read_bytes()
        header = decode_file_header(content, "journal")
        assert header is None or header.version == (2 if is_tagged else 1)
        assert header is not None or not is_tagged
        batches = list(scan_bytes(content, file_id, "journal")[1])
        if header is None or header.file_id != file_id:
            assert not batches, "made ready, not used yet"
        kinds |= {record.kind for batch in batches for record in batch.records}
        seals += sum(not batch.records for batch in batches)
    assert kinds == {Kind.ENTRY, Kind.FENCE, Kind.LAC}
    assert bool(seals) == has_seals
    usage = inspect.list_logs(home / "data")[1]
    assert read_map(disk, home / "data", 1) == usage, "the first log is sealed by a map, and all of it is live"
    ledgers = {ledger.ledger_id: ledger for ledger in inspect.list_ledgers([home / "data"])}
    assert ledgers[1].spans == [[0, FLUSHED - 1]]
    assert ledgers[FENCED].is_fenced
    assert ledgers[LIMBO].is_limbo
    assert ledgers[DELETED].is_deleted
    assert ledgers[EXPLICIT_LAC].last_add_confirmed == LAC
    assert inspect.verify(folders.data, folders.journals).is_sound


def test_the_whole_is_replayed_and_read(home: Path, request: pytest.FixtureRequest) -> None:  # I1, I4
    shutil.copytree(home, home / "copy")
    opened = open_storage(RealDisk(), small_config(home / "copy"), [])
    try:
        storage = opened.storage
        assert opened.summary.entries >= IN_JOURNAL
        for entry_id in range(FLUSHED + IN_JOURNAL):
            data = storage.cached(1, entry_id) or storage.read_disk(1, entry_id)[0][1]
            assert decode_entry(data).payload == payload(entry_id)
        for entry_id in range(KEPT if request.node.callspec.params["home"] > 3 else 0):
            assert decode_entry(storage.read_disk(WRITTEN_ONCE, entry_id)[0][1]).payload == kept_payload(entry_id)
        for ledger_id in (FENCED, FENCED_IN_JOURNAL, LIMBO):
            state = storage.ledgers.get(ledger_id)
            assert state is not None
            assert not state.fence.permits_add(is_recovery=False)
        assert DELETED in storage.ledgers.deleted
        assert storage.last_add_confirmed(EXPLICIT_LAC) == LAC + 1
    finally:
        opened.storage.close()

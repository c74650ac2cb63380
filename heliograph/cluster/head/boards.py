"""The boards in the folder from which the Grafana of Ray takes its own."""

from __future__ import annotations

from pathlib import Path

from heliograph.cluster.head.launch import RAY_FILES
from heliograph.monitoring.boards import BOARDS, board_json, file_name

RAY_DIRECTORY = Path("/tmp/ray")  # of a Ray that `helio up` did not start, unless its owner chose another
_BOARDS = Path("session_latest", "metrics", "grafana", "dashboards")


def rays_directory(temporary: str) -> Path:
    """Return the directory with the sessions of Ray.

    Args:
        temporary: directory of the Ray that `helio up` started; empty if it started none.
    """
    return Path(temporary) / RAY_FILES if temporary else RAY_DIRECTORY


def write_boards(folder: Path) -> list[Path]:
    """Write all boards into an existing folder, and return their files.

    Raises:
        OSError: a file cannot be written; others may have been.
    """
    files = [folder / file_name(board) for board in BOARDS]
    for file, board in zip(files, BOARDS, strict=True):
        file.write_text(board_json(board), encoding="utf-8")
    return files


def give_boards_to_ray(temporary: str, *, only_missing: bool = False) -> list[Path]:
    """Write the boards beside Ray's. Ray begins each session with its own boards only.

    Args:
        only_missing: write nothing if all are there.

    Returns:
        their files; none if Ray has no boards here, or the folder cannot be written.
    """
    folder = rays_directory(temporary) / _BOARDS
    try:
        if only_missing and all((folder / file_name(board)).exists() for board in BOARDS):
            return []
        return write_boards(folder) if folder.is_dir() else []
    except OSError:
        return []

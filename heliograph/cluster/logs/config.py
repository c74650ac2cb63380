"""Settings of the parts' logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heliograph.base.settings import check_limits, setting

MIB = 1024 * 1024
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """Settings of each part's log."""

    directory: Path = setting(Path("logs"), "directory of the files, on each node", decided="home")
    level: str = setting("INFO", f"lowest level of Heliograph's lines: {', '.join(LEVELS)}", choices=LEVELS)
    format: str = setting("text", "`text`, or `json` for one JSON object a line", choices=FORMATS)
    file_bytes_max: int = setting(16 * MIB, "size above which a part's file is rotated", least=64 * 1024)
    files_max: int = setting(5, "files that are kept for each part, the current one counted", least=1, most=1_000)
    lines_max: int = setting(
        10_000, "lines that wait for the disk; further ones are dropped, and the next line says how many", least=1
    )

    def __post_init__(self) -> None:
        check_limits(self)

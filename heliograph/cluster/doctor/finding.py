"""The finding of a check. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is. Only a problem makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: the finding and, for a warning or a problem, the way out."""

    check: str
    severity: Severity
    found: str
    way_out: str = ""

    def __post_init__(self) -> None:
        assert self.way_out or self.severity is Severity.OK, "a warning has a way out"


def ok(check: str, found: str) -> CheckResult:
    return CheckResult(check, Severity.OK, found)


def warning(check: str, found: str, way_out: str) -> CheckResult:
    return CheckResult(check, Severity.WARNING, found, way_out)


def problem(check: str, found: str, way_out: str) -> CheckResult:
    return CheckResult(check, Severity.PROBLEM, found, way_out)

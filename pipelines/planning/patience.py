"""Waiting for a cluster that does not answer for a while: restarts of brokers, of Ray or of the metadata store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from heliograph.base.backoff import Attempts, Backoff
from heliograph.base.errors import Advice, ClusterNotFoundError, HeliographError

log = logging.getLogger(__name__)

R = TypeVar("R")

# Without any answer; then the last error is raised. A part that ended again and again is back after a minute.  # I15
BATCH_SECONDS = 120.0
STREAM_SECONDS = 600.0  # of streams and Datasets
PAUSE_MS = 500  # after the first failure; doubles with each
PAUSE_MS_MAX = 15_000


class Patience:
    """Repeats calls that fail for a reason that may pass.

    Before the first call has succeeded, a cluster that is not found is taken for one that is not there.

    Args:
        wait_seconds_max: how long a call is repeated.
        clock, sleep: the monotonic clock and the pause, both in seconds.
    """

    def __init__(
        self,
        wait_seconds_max: float = STREAM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wait_seconds_max = wait_seconds_max
        self._clock = clock
        self._sleep = sleep
        self._has_succeeded = False

    def call(self, what: str, work: Callable[[], R]) -> R:
        """Return what ``work`` returns; ``what`` names it in the log.

        Raises:
            HeliographError: it cannot succeed, or did not within ``wait_seconds_max``.
        """
        attempts = Attempts(self._wait_seconds_max, Backoff(PAUSE_MS, PAUSE_MS_MAX), self._clock)
        while True:
            try:
                answer = work()
            except HeliographError as error:
                if not self._may_pass(error):
                    raise
                pause = attempts.pause_after(error)
                log.warning("%s failed, the next attempt is in %.1f s: %s", what, pause, error)
                self._sleep(pause)
            else:
                self._has_succeeded = True
                return answer

    def _may_pass(self, error: HeliographError) -> bool:
        if isinstance(error, ClusterNotFoundError):
            return self._has_succeeded
        return error.advice is not Advice.STOP

"""Calls of commands to the operator."""

from __future__ import annotations

import time
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import ServiceNotReadyError, VersionMismatchError
from heliograph.base.version import heliograph_version
from heliograph.client import discovery
from heliograph.client.admin.admin import unwrapped
from heliograph.client.admin.part_access import CALL_SECONDS, part_of
from heliograph.cluster.operator import wishes

ELECTED_SECONDS = 30.0  # for a new operator to lead: the session of one before it has to end
POLL_SECONDS = 0.5


def ask_operator(
    namespace: str,
    method: str,
    *arguments: Any,
    call_seconds: float = CALL_SECONDS,
    elected_seconds: float | None = None,
) -> Any:
    """Call a method of the operator; while it is elected or restarts, wait and repeat the call.

    Args:
        call_seconds: longest wait for one answer.
        elected_seconds: longest wait for a leader, None: ELECTED_SECONDS; 0: the caller repeats the call itself.

    Raises:
        NotFoundError: the cluster has no operator.
        ClusterNotFoundError: there is no cluster.
        ServiceNotReadyError: the operator did not come back in time; it may have accepted the call before it ended.
        HeliographError: as the method raises.
    """
    operator = part_of(discovery.OPERATOR, namespace)
    deadline = time.monotonic() + (ELECTED_SECONDS if elected_seconds is None else elected_seconds)
    while True:
        try:
            return ray.get(getattr(operator, method).remote(*arguments), timeout=call_seconds)
        except AttributeError as error:  # of its handle, or of the part in the shared process
            if f"no attribute {method!r}" not in str(error):
                raise
            raise VersionMismatchError(
                wishes.older_operator(f"one without {method!r}"), field="version", limit=heliograph_version()
            ) from error
        except ray.exceptions.GetTimeoutError as error:
            raise ServiceNotReadyError(
                f"the operator does not answer in {call_seconds:.0f} s: try again, it may have accepted the call",
                field="operator",
            ) from error
        except ray.exceptions.RayError as error:
            raised = unwrapped(error, discovery.OPERATOR)
            if isinstance(error, ray.exceptions.ActorUnavailableError):  # the next one accepts the call again
                raised = ServiceNotReadyError(
                    "the operator is restarting: try again, the call may have been accepted", field="operator"
                )
            if not isinstance(raised, ServiceNotReadyError) or time.monotonic() > deadline:
                raise raised from error
        time.sleep(POLL_SECONDS)

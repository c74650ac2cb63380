"""Values of training steps by key, and the storage client of TransferQueue. Steps are dropped with their ledgers."""

from heliograph.pipelines.steps.storage_client import HeliographStorageClient, register
from heliograph.pipelines.steps.store import StepStore

__all__ = ["HeliographStorageClient", "StepStore", "register"]

"""Queues of tasks and processors beside others in one run, each synced before something counts as stored."""

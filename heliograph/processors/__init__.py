"""Processors: functions of messages with state per key, which survive the loss of their processes.

Promises: each input message changes states and outputs exactly once; an owner that was fenced can write nothing (I13).
"""

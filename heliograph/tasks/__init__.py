"""Durable tasks: functions whose calls are messages, run by workers that may be killed at any time.

Promises: a job that was submitted is run until it has a result or a letter (I1); a job with a result is not run again.
"""

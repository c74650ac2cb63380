"""Spans of messages on their way, for OpenTelemetry and for ``helio trace``. Nothing is imported of OpenTelemetry, and
nothing is noted, unless tracing is configured."""

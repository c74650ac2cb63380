"""The HTTP server under the app: its socket and its counters."""

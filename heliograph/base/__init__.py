"""Base that every folder may import: errors, clocks, back-off, state tables, event loop threads. Imports no other."""

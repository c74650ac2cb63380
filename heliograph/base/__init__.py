"""What every folder may import: errors, clocks, back-off, state tables, event loop threads. Imports nothing of ours."""

"""Plans of ledger ranges: which acknowledged entries a task reads, from which bookies. Keeps I3 and I8."""

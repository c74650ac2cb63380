"""The auditor: it finds lost bookies and missing copies, and repairs ledgers. Keeps I9, I10 and I15."""

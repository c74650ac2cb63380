"""Where the copies of all ledgers are, kept in memory by what changes. No search looks at more than bytes (I24)."""

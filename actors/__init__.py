"""What runs in Ray: ledgers (the replication protocol), bookies, brokers, the auditor, and the wire between them."""

"""The bookie's listener: connections, requests, and the reads that requests lead to. Keeps I15."""

"""Keep the latest message of each key of a topic in a compacted ledger, and read a topic from it.

Keeps I9 (the record names a compacted ledger only when it is complete) and I14 (nothing is trimmed that was not
compacted).
"""

"""The storage server for entries. It acknowledges an add only after the journal is synced. Keeps I1, I4, I6, I14."""

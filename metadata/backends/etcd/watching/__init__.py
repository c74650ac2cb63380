"""Watches of an etcd session: told in order, without a gap, before what is read; the session's end first (I13)."""

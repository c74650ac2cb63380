"""The broker: topics on managed ledgers, cursors, dispatch, and Pulsar's binary protocol (I11 to I16)."""

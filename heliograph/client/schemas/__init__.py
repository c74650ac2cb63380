"""How values become the bytes of messages and come back, by the schemas of the registry; readers of tables share it."""

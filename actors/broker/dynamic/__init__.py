"""Settings of brokers that change while they run: which they are, their record in metadata, the watch that applies it.

A value is checked against its setting's limits before it is stored; a broker ignores values that it cannot apply."""

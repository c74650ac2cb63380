"""Settings of brokers that change while they run: which they are, their record in metadata, the watch that applies it.

A value is checked with the limits of its setting before it is stored, and a broker ignores what it cannot apply."""

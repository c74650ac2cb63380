"""The Java client: groups of scenarios, each a program, in ``src/main/java``."""

"""``format("heliograph")`` with a real Spark 4, in an environment of its own: ``make test-spark4``."""

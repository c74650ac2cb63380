"""``format("heliograph")`` of Spark 4: a Python data source that reads and writes topics, in batches and streams."""

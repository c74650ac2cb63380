"""Time: what comes and goes on a cluster, for hours, must leave nothing behind: ``make soak HOURS=8``."""

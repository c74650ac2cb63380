"""The demonstration: 336,776 real flights through a replicated, fsynced log on Ray, and into Spark."""

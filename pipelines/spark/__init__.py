"""Topics as PySpark DataFrames, and the Spark session. Reading a DataFrame again gives the same rows (I1, I5)."""

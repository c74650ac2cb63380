"""Topics as Ray Datasets."""

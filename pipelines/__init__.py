"""Topics for Ray Data and Spark. ``heliograph.spark`` and ``heliograph.ray_data`` hold the public names."""

if __name__ != "heliograph.pipelines":
    raise ImportError(f"{__name__!r} is a folder of Heliograph: import heliograph.pipelines instead")

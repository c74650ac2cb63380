"""Topics as Ray Datasets. Needs pyarrow, which the extra ``[spark]`` installs."""

from heliograph.base.version import extra_required

with extra_required():
    from heliograph.pipelines.ray_data.dataset import read_topic, write_dataset
    from heliograph.pipelines.reading.options import ReadKeywords, StreamKeywords
    from heliograph.pipelines.streaming.datasets import DatasetStream, stream_datasets
    from heliograph.pipelines.writing.options import WriteKeywords

__all__ = [
    "DatasetStream",
    "ReadKeywords",
    "StreamKeywords",
    "WriteKeywords",
    "read_topic",
    "stream_datasets",
    "write_dataset",
]

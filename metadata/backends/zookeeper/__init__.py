"""The ZooKeeper backend: a MetadataStore on a real ZooKeeper, over kazoo."""

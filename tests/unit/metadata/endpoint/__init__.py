"""The ZooKeeper endpoint without a store: its bytes, its ACLs and its watches."""

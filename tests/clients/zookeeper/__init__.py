"""ZooKeeper's own users on ``helio metadata serve``: each must find what it would find at a ZooKeeper."""

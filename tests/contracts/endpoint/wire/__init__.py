"""A client of ZooKeeper's protocol that sends any frame, generated calls, and transcripts of conversations."""

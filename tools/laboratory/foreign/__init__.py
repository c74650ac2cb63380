"""Other logs beside ours in one run: Redis, NATS JetStream and Kafka, each with one synced copy."""

"""Pulsar's binary protocol at the broker: connections and the handlers of the commands. Receipts and answers to
acknowledgements are sent only for what is durable (I2, I11); what the broker keeps for a client is bounded (I15)."""

"""REST produce and consume. A 200 means that the effect is durable (I11)."""

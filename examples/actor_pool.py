"""A pool of actors that one topic feeds, with back-pressure, a killed actor and dead letters: python actor_pool.py"""

import time
from typing import Any

import ray

import heliograph

DOCUMENTS = [f"document {number}" for number in range(200)] + ["", ""]  # nothing can be made of the last two

ray.init("local", num_cpus=3, include_dashboard=False)
cluster = heliograph.start()  # a bookie, a broker and a gateway, as actors of this Ray
client = cluster.connect()


def embed(text: str) -> str:
    time.sleep(0.02)  # as long as a small model takes
    return f"a vector of {text.split()[1]}"  # raises IndexError if there is no second word


class Embedder:
    def __init__(self, documents: heliograph.Topic, vectors: heliograph.Topic) -> None:
        self.documents, self.vectors = documents, vectors  # a model is loaded here, once for each actor

    def work(self) -> int:
        done = 0
        options = {"initial_position": "earliest", "receiver_queue": 4, "max_redeliver": 2, "nack_delay_ms": 100}
        with (
            self.documents.consumer("pool", type="shared", schema=str, **options) as consumer,
            self.vectors.producer(schema=str) as producer,
        ):
            while messages := consumer.receive_many(4, timeout=5):
                for message in messages:
                    try:
                        vector = embed(message.value)
                    except IndexError:
                        consumer.nack(message)  # it is delivered again, twice at most
                    else:
                        producer.send(vector, key=message.value)  # stored when it returns
                        consumer.ack(message)
                        done += 1
        return done


client.admin.create_topic("documents")
client.admin.create_subscription("documents", "pool")
Actor: Any = ray.remote(num_cpus=1)(Embedder)  # with a model on a GPU: num_gpus=1
pool = [Actor.remote(client.topic("documents"), client.topic("vectors")) for _ in range(3)]
working = [actor.work.remote() for actor in pool]

with client.producer("documents", schema=str) as producer:
    for first in range(0, len(DOCUMENTS), 20):
        while client.admin.topic_stats("documents")["subscriptions"]["pool"]["backlogMessages"] > 60:
            time.sleep(0.05)  # the pool is behind
        producer.send_many(DOCUMENTS[first : first + 20])
        if first == 100:
            ray.kill(pool.pop(0))  # the others get the documents that it had in hand
            working.pop(0)

print("documents done by the other two actors:", ray.get(working))
with client.table_view("vectors", schema=str) as vectors, client.reader("documents-pool-DLQ", "earliest") as letters:
    print(len(vectors), "vectors and", len(letters.receive_many(2, timeout=10)), "dead letters")

for topic in ("documents", "vectors", "documents-pool-DLQ"):
    client.admin.delete_topic(topic, force=True)
cluster.stop()

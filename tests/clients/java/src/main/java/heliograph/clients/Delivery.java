package heliograph.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** How messages reach consumers: subscription types, acknowledgements, redelivery, dead letters. */
final class Delivery extends Scenarios {
    private Delivery(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("produce_consume", this::produceConsume);
        scenario("dead_letters", this::deadLetters);
        scenario("retry_topics", this::retryTopics);
        scenario("batching", this::batching);
        scenario("exclusive", this::exclusive);
        scenario("shared", this::shared);
        scenario("failover", this::failover);
        scenario("key_shared", this::keyShared);
        scenario("cumulative_ack", this::cumulativeAck);
        scenario("batch_index_ack", this::batchIndexAck);
        scenario("negative_ack", this::negativeAck);
        scenario("ack_timeout", this::ackTimeout);
        scenario("delayed", this::delayed);
    }

    public static void main(String[] arguments) throws Exception {
        new Delivery(arguments[0], arguments[1]).runAll(arguments, 4);
    }

    private Producer<byte[]> single(String topic) throws PulsarClientException {
        return client.newProducer().topic(topic).enableBatching(false).create();
    }

    private String produceConsume() throws Exception {
        String topic = topic("plain");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = single(topic)) {
            for (String text : numbered(10)) {
                producer.newMessage().key("k").property("p", text).eventTime(77).value(bytes(text)).send();
            }
            for (String text : numbered(10)) {
                Message<byte[]> message = next(consumer);
                same(text, new String(message.getData(), StandardCharsets.UTF_8), "payload");
                same("k", message.getKey(), "key");
                same(text, message.getProperty("p"), "property");
                same(77L, message.getEventTime(), "event time");
                consumer.acknowledge(message);
            }
            none(consumer, 200);
        }
        return null;
    }

    private String deadLetters() throws Exception {
        String topic = topic("dead");
        DeadLetterPolicy policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(2).deadLetterTopic(topic + "-DLQ").initialSubscriptionName("kept").build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = single(topic)) {
            producer.newMessage().property("p", "v").value(bytes("bad")).send();
            producer.send(bytes("good"));
            int refusals = 0;
            int taken = 0;
            while (refusals < 3 || taken < 1) {
                Message<byte[]> message = next(consumer);
                if (new String(message.getData(), StandardCharsets.UTF_8).equals("bad")) {
                    refusals++;
                    consumer.negativeAcknowledge(message);
                } else {
                    taken++;
                    consumer.acknowledge(message);
                }
            }
            try (Consumer<byte[]> dead = client.newConsumer().topic(topic + "-DLQ").subscriptionName("kept").subscribe()) {
                Message<byte[]> message = null;
                for (int n = 0; n < WAIT_SECONDS * 2 && message == null; n++) {
                    // The message goes to the dead letters when it comes once more.
                    Message<byte[]> again = consumer.receive(100, TimeUnit.MILLISECONDS);
                    check(again == null, "the message came more often than the policy says");
                    message = dead.receive(400, TimeUnit.MILLISECONDS);
                }
                check(message != null, "no dead letter arrived");
                same("bad", new String(message.getData(), StandardCharsets.UTF_8), "dead letter");
                same("v", message.getProperty("p"), "its property");
                same(topic, message.getProperty("REAL_TOPIC"), "its topic of origin");
                dead.acknowledge(message);
            }
            none(consumer, 500);
        }
        return null;
    }

    /** Two topics with one subscription name: the retried messages of one never reach the other. */
    private String retryTopics() throws Exception {
        List<String> topics = List.of(topic("retry-a"), topic("retry-b"));
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        try {
            for (String topic : topics) {
                DeadLetterPolicy policy = DeadLetterPolicy.builder()
                        .maxRedeliverCount(2).initialSubscriptionName("kept").build();
                consumers.add(client.newConsumer().topic(topic).subscriptionName("inv")
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
            }
            for (String topic : topics) {
                try (Producer<byte[]> producer = single(topic)) {
                    producer.send(bytes(topic));
                }
            }
            for (int n = 0; n < 2; n++) {
                for (int times = 0; times < 3; times++) {
                    Message<byte[]> message = next(consumers.get(n));
                    same(topics.get(n), new String(message.getData(), StandardCharsets.UTF_8), "whose message it is");
                    String count = message.getProperty("RECONSUMETIMES");
                    same(times == 0 ? "null" : String.valueOf(times), String.valueOf(count), "times of the retry");
                    consumers.get(n).reconsumeLater(message, 300, TimeUnit.MILLISECONDS);
                }
                try (Consumer<byte[]> dead = client.newConsumer().topic(topics.get(n) + "-inv-DLQ")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscriptionName("kept").subscribe()) {
                    Message<byte[]> message = next(dead);
                    same(topics.get(n), new String(message.getData(), StandardCharsets.UTF_8), "whose dead letter it is");
                    none(dead, 200);
                }
            }
            for (Consumer<byte[]> consumer : consumers) {
                none(consumer, 300);
            }
        } finally {
            for (Consumer<byte[]> consumer : consumers) {
                consumer.close();
            }
        }
        return null;
    }

    private String batching() throws Exception {
        String topic = topic("batch");
        for (BatcherBuilder builder : List.of(BatcherBuilder.DEFAULT, BatcherBuilder.KEY_BASED)) {
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                            .subscriptionType(SubscriptionType.Shared).subscribe();
                    Producer<byte[]> producer = client.newProducer().topic(topic).batcherBuilder(builder)
                            .batchingMaxPublishDelay(500, TimeUnit.MILLISECONDS).create()) {
                for (String text : numbered(100)) {
                    producer.newMessage().key("k" + text.length()).value(bytes(text)).sendAsync();
                }
                producer.flush();
                same(new HashSet<>(numbered(100)), new HashSet<>(texts(consumer, 100)), "payloads");
            }
        }
        return null;
    }

    private String exclusive() throws Exception {
        String topic = topic("exclusive");
        try (Consumer<byte[]> first = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            try {
                client.newConsumer().topic(topic).subscriptionName("s").subscribe().close();
                throw new AssertionError("a second consumer was let in");
            } catch (PulsarClientException.ConsumerBusyException busy) {
                return null;
            } finally {
                first.unsubscribe();
            }
        }
    }

    private String shared() throws Exception {
        String topic = topic("shared");
        try (Consumer<byte[]> first = client.newConsumer().topic(topic).subscriptionName("s").receiverQueueSize(10)
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Consumer<byte[]> second = client.newConsumer().topic(topic).subscriptionName("s").receiverQueueSize(10)
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = single(topic)) {
            for (String text : numbered(40)) {
                producer.sendAsync(bytes(text));
            }
            producer.flush();
            Set<String> found = new HashSet<>();
            Set<Consumer<byte[]>> had = new HashSet<>();
            for (int empty = 0; found.size() < 40 && empty < 100; ) {
                for (Consumer<byte[]> consumer : List.of(first, second)) {
                    Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        empty++;
                    } else {
                        check(found.add(new String(message.getData(), StandardCharsets.UTF_8)), "twice");
                        had.add(consumer);
                        consumer.acknowledge(message);
                    }
                }
            }
            same(40, found.size(), "messages");
            same(2, had.size(), "consumers that had messages");
        }
        return null;
    }

    private String failover() throws Exception {
        String topic = topic("failover");
        Map<String, List<String>> events = new ConcurrentHashMap<>();
        ConsumerEventListener listener = new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                events.computeIfAbsent(consumer.getConsumerName(), name -> new CopyOnWriteArrayList<>()).add("active");
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                events.computeIfAbsent(consumer.getConsumerName(), name -> new CopyOnWriteArrayList<>()).add("inactive");
            }
        };
        try (Producer<byte[]> producer = single(topic);
                Consumer<byte[]> second = client.newConsumer().topic(topic).subscriptionName("s").consumerName("b")
                        .subscriptionType(SubscriptionType.Failover).consumerEventListener(listener).subscribe()) {
            Consumer<byte[]> first = client.newConsumer().topic(topic).subscriptionName("s").consumerName("a")
                    .subscriptionType(SubscriptionType.Failover).consumerEventListener(listener).subscribe();
            Consumer<byte[]> active = null;
            for (String text : numbered(4)) {
                producer.send(bytes(text));
            }
            Message<byte[]> message = null;
            for (int n = 0; n < 200 && message == null; n++) {
                active = n % 2 == 0 ? first : second;
                message = active.receive(100, TimeUnit.MILLISECONDS);
            }
            check(message != null, "no consumer is active");
            same("m0", new String(message.getData(), StandardCharsets.UTF_8), "first message");
            active.acknowledge(message);
            same(List.of("m1"), texts(active, 1), "second message");
            Consumer<byte[]> other = active == first ? second : first;
            none(other, 300);
            active.close();
            same(List.of("m2", "m3"), texts(other, 2), "what is left for the other consumer");
            for (int n = 0; n < 100 && !events.getOrDefault(other.getConsumerName(), List.of()).contains("active"); n++) {
                Thread.sleep(50);
            }
            check(events.getOrDefault(other.getConsumerName(), List.of()).contains("active"), "it was not told: " + events);
            other.close();
        }
        return null;
    }

    private String keyShared() throws Exception {
        String topic = topic("key-shared");
        try (Consumer<byte[]> first = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Consumer<byte[]> second = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic)
                        .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
            for (int n = 0; n < 200; n++) {
                producer.newMessage().key("key-" + n % 20).value(bytes(String.valueOf(n))).sendAsync();
            }
            producer.flush();
            Map<String, Consumer<byte[]>> owners = new HashMap<>();
            Map<String, Integer> last = new HashMap<>();
            int count = 0;
            for (int empty = 0; count < 200 && empty < 100; ) {
                for (Consumer<byte[]> consumer : List.of(first, second)) {
                    Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        empty++;
                        continue;
                    }
                    empty = 0;  // only silence of both ends the wait: their shares of the keys differ
                    count++;
                    Consumer<byte[]> owner = owners.putIfAbsent(message.getKey(), consumer);
                    check(owner == null || owner == consumer, "two consumers have " + message.getKey());
                    int number = Integer.parseInt(new String(message.getData(), StandardCharsets.UTF_8));
                    Integer before = last.put(message.getKey(), number);
                    check(before == null || before < number, "out of order for " + message.getKey());
                    consumer.acknowledge(message);
                }
            }
            same(200, count, "messages");
            same(2, new HashSet<>(owners.values()).size(), "consumers that have keys");
        }
        return null;
    }

    private String cumulativeAck() throws Exception {
        String topic = topic("cumulative");
        try (Producer<byte[]> producer = single(topic)) {
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
                for (String text : numbered(10)) {
                    producer.send(bytes(text));
                }
                Message<byte[]> message = null;
                for (int n = 0; n < 7; n++) {
                    message = next(consumer);
                }
                consumer.acknowledgeCumulative(message);
            }
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
                same(List.of("m7", "m8", "m9"), texts(consumer, 3), "what was not acknowledged");
            }
        }
        return null;
    }

    private String batchIndexAck() throws Exception {
        String topic = topic("batch-index");
        try (Producer<byte[]> producer = client.newProducer().topic(topic)
                .batchingMaxPublishDelay(2, TimeUnit.SECONDS).create()) {
            try (Consumer<byte[]> consumer = indexed(topic)) {
                for (String text : numbered(10)) {
                    producer.sendAsync(bytes(text));
                }
                producer.flush();
                for (int n = 0; n < 10; n++) {
                    Message<byte[]> message = next(consumer);
                    if (n % 2 == 0) {
                        consumer.acknowledge(message);
                    }
                }
            }
            try (Consumer<byte[]> consumer = indexed(topic)) {
                same(List.of("m1", "m3", "m5", "m7", "m9"), texts(consumer, 5), "what was not acknowledged");
                none(consumer, 300);
            }
        }
        return null;
    }

    private Consumer<byte[]> indexed(String topic) throws PulsarClientException {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true).subscribe();
    }

    private String negativeAck() throws Exception {
        String topic = topic("negative");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared)
                        .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = single(topic)) {
            producer.send(bytes("m"));
            Message<byte[]> message = next(consumer);
            same(0, message.getRedeliveryCount(), "redeliveries at first");
            consumer.negativeAcknowledge(message);
            message = next(consumer);
            same(1, message.getRedeliveryCount(), "redeliveries");
            consumer.acknowledge(message);
            none(consumer, 600);
        }
        return null;
    }

    private String ackTimeout() throws Exception {
        String topic = topic("timeout");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS).subscribe();
                Producer<byte[]> producer = single(topic)) {
            producer.send(bytes("m"));
            next(consumer);
            Message<byte[]> message = next(consumer);
            // On a machine that stands still before the acknowledgement, it comes once more.
            for (int n = 0; n < WAIT_SECONDS && message != null; n++) {
                same("m", new String(message.getData(), StandardCharsets.UTF_8), "redelivered");
                consumer.acknowledge(message);
                message = consumer.receive(1_500, TimeUnit.MILLISECONDS);
            }
            check(message == null, "what is acknowledged comes no more");
        }
        return null;
    }

    private String delayed() throws Exception {
        String topic = topic("delayed");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            long begun = System.currentTimeMillis();
            producer.newMessage().deliverAfter(3, TimeUnit.SECONDS).value(bytes("after")).send();
            producer.newMessage().deliverAt(begun + 1_500).value(bytes("at")).send();
            producer.newMessage().value(bytes("now")).send();
            Map<String, Integer> due = new HashMap<>(Map.of("now", 0, "at", 1_500, "after", 3_000));
            for (int n = 0; n < 3; n++) {
                Message<byte[]> message = next(consumer);
                Integer earliest = due.remove(new String(message.getData(), StandardCharsets.UTF_8));
                check(earliest != null, "each comes once");
                check(System.currentTimeMillis() - begun >= earliest, "too early by " + due);
                consumer.acknowledge(message);
            }
        }
        return null;
    }
}

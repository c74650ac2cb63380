package heliograph.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;

/** What a batch means for a queue: its messages are divided, refused one by one, and kept together by their keys. */
final class Batches extends Scenarios {
    private static final int JOBS = 60;
    private static final int KEYS = 10;
    private static final int IDLE_ROUNDS = 20;

    /** From 4 on the client takes what a delivery leaves out for acknowledged, so it gets whole entries. */
    private static final boolean TAKES_PARTS = PulsarVersion.getVersion().startsWith("3.");

    private Batches(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("divided_batches", this::dividedBatches);
        scenario("refused_alone", this::refusedAlone);
        scenario("buried_alone", this::buriedAlone);
        scenario("keys_together", this::keysTogether);
    }

    public static void main(String[] arguments) throws Exception {
        new Batches(arguments[0], arguments[1]).runAll(arguments, 4);
    }

    private ConsumerBuilder<byte[]> worker(String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                .enableBatchIndexAcknowledgment(true)
                .property("heliograph.takes-parts", "true");
    }

    /** Returns three consumers that all take parts, as they say. */
    private List<Consumer<byte[]>> workers(String topic, SubscriptionType type, int queue)
            throws PulsarClientException {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            consumers.add(worker(topic, type).receiverQueueSize(queue).subscribe());
        }
        return consumers;
    }

    private void publish(String topic, int messages, BatcherBuilder builder) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).batcherBuilder(builder)
                .batchingMaxPublishDelay(2, TimeUnit.SECONDS).batchingMaxMessages(messages).create()) {
            for (int n = 0; n < messages; n++) {
                producer.newMessage().key("k" + n % KEYS).value(bytes("m" + n)).sendAsync();
            }
            producer.flush();
        }
    }

    /** Returns what each consumer got, in order, of messages that each acknowledges one by one. */
    private List<List<Message<byte[]>>> shares(List<Consumer<byte[]>> consumers, int messages) throws Exception {
        List<List<Message<byte[]>>> shares = List.of(new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
        int count = 0;
        for (int idle = 0; count < messages && idle < 600 || count >= messages && idle < IDLE_ROUNDS; idle++) {
            for (int n = 0; n < consumers.size(); n++) {
                Message<byte[]> message = consumers.get(n).receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumers.get(n).acknowledgeAsync(message);
                    shares.get(n).add(message);
                    count++;
                    idle = 0;
                }
            }
        }
        Set<String> all = new HashSet<>();
        for (List<Message<byte[]>> share : shares) {
            share.forEach(message -> all.add(text(message)));
        }
        same(new HashSet<>(numbered(messages)), all, "what three consumers of one batch got");
        same(messages, count, "deliveries");
        return shares;
    }

    private static void close(List<Consumer<byte[]>> consumers) throws PulsarClientException {
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    /** Twice: with a message at a time, and with a queue of four, so that parts have several messages. */
    private String dividedBatches() throws Exception {
        for (int queue : new int[] {1, 4}) {
            String topic = topic("divided-" + queue);
            List<Consumer<byte[]>> consumers = workers(topic, SubscriptionType.Shared, queue);
            publish(topic, JOBS, BatcherBuilder.DEFAULT);
            int[] sizes = shares(consumers, JOBS).stream().mapToInt(List::size).sorted().toArray();
            String found = "shares " + Arrays.toString(sizes);
            if (TAKES_PARTS) {
                check(sizes[0] >= 10, found);
            } else {
                same(JOBS, sizes[2], found);
            }
            close(consumers);
            try (Consumer<byte[]> last = worker(topic, SubscriptionType.Shared).subscribe()) {
                none(last, 300);
            }
        }
        return null;
    }

    /** One of 300 jobs of a batch is refused: it comes once more, and no other one does. */
    private String refusedAlone() throws Exception {
        String topic = topic("refused");
        try (Consumer<byte[]> consumer = worker(topic, SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(2, TimeUnit.SECONDS).subscribe()) {
            publish(topic, 300, BatcherBuilder.DEFAULT);
            for (int n = 0; n < 300; n++) {
                Message<byte[]> message = next(consumer);
                if (text(message).equals("m137")) {
                    consumer.negativeAcknowledge(message);
                } else {
                    consumer.acknowledgeAsync(message);
                }
            }
            Message<byte[]> again = next(consumer);
            same("m137", text(again), "what comes again");
            same(1, again.getRedeliveryCount(), "its redeliveries");
            consumer.acknowledge(again);
            none(consumer, 3_000);
        }
        return null;
    }

    /** One of 100 jobs of a batch is refused until it is a dead letter: no other one becomes one. */
    private String buriedAlone() throws Exception {
        String topic = topic("buried");
        DeadLetterPolicy policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(2).deadLetterTopic(topic + "-dead").initialSubscriptionName("kept").build();
        try (Consumer<byte[]> consumer = worker(topic, SubscriptionType.Shared).deadLetterPolicy(policy)
                        .negativeAckRedeliveryDelay(1, TimeUnit.SECONDS).subscribe();
                Consumer<byte[]> dead = client.newConsumer().topic(topic + "-dead").subscriptionName("kept").subscribe()) {
            publish(topic, 100, BatcherBuilder.DEFAULT);
            for (int n = 0; n < 102; n++) {
                Message<byte[]> message = next(consumer);
                if (text(message).equals("m37")) {
                    consumer.negativeAcknowledge(message);
                } else {
                    consumer.acknowledgeAsync(message);
                }
            }
            none(consumer, 3_000);
            same(List.of("m37"), texts(dead, 1), "dead letters");
            none(dead, 1_000);
        }
        return null;
    }

    /** The messages of a key are at one consumer and in order; where entries stay whole, the producer batches by key. */
    private String keysTogether() throws Exception {
        String topic = topic("together");
        List<Consumer<byte[]>> consumers = workers(topic, SubscriptionType.Key_Shared, 4);
        publish(topic, 12 * KEYS, TAKES_PARTS ? BatcherBuilder.DEFAULT : BatcherBuilder.KEY_BASED);
        List<List<Message<byte[]>>> shares = shares(consumers, 12 * KEYS);
        Map<String, Integer> homes = new HashMap<>();
        Map<String, Integer> last = new HashMap<>();
        for (int n = 0; n < shares.size(); n++) {
            for (Message<byte[]> message : shares.get(n)) {
                Integer home = homes.putIfAbsent(message.getKey(), n);
                same(n, home == null ? n : home, "the consumer of " + message.getKey());
                int number = Integer.parseInt(text(message).substring(1));
                check(number > last.getOrDefault(message.getKey(), -1), message.getKey() + " is out of order");
                last.put(message.getKey(), number);
            }
        }
        same(KEYS, homes.size(), "keys");
        close(consumers);
        return null;
    }
}

package heliograph.clients;

import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;

/** What frameworks for applications call: batches of receives, listeners, back-off, properties, encryption. */
final class Frameworks extends Scenarios {
    private static final int PKCS8_HEADER_BYTES = 26; // of an RSA key of 2,048 bits

    private Frameworks(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("batch_receive", this::batchReceive);
        scenario("listener", this::listener);
        scenario("backoff", this::backoff);
        scenario("key_ranges", this::keyRanges);
        scenario("subscription_properties", this::subscriptionProperties);
        scenario("several_topics", this::severalTopics);
        scenario("end_of_topic", this::endOfTopic);
        scenario("no_receiver_queue", this::noReceiverQueue);
        scenario("non_persistent", this::nonPersistent);
        scenario("encryption", this::encryption);
    }

    public static void main(String[] arguments) throws Exception {
        new Frameworks(arguments[0], arguments[1]).runAll(arguments, 4);
    }

    private void publish(String topic, int count) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (String text : numbered(count)) {
                producer.newMessage().key(text).value(bytes(text)).sendAsync();
            }
            producer.flush();
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    /** A batch that is refused comes again as a whole; one that is acknowledged does not. */
    private String batchReceive() throws Exception {
        String topic = topic("batch-receive");
        BatchReceivePolicy policy = BatchReceivePolicy.builder()
                .maxNumMessages(10).timeout(1, TimeUnit.SECONDS).build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).batchReceivePolicy(policy)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
            publish(topic, 25);
            Set<String> found = new HashSet<>();
            boolean refused = false;
            for (int empty = 0; found.size() < 25 && empty < WAIT_SECONDS; ) {
                Messages<byte[]> messages = consumer.batchReceive();
                check(messages.size() <= 10, "a batch of " + messages.size());
                if (messages.size() == 0) {
                    empty++;
                } else if (!refused) {
                    refused = true;
                    consumer.negativeAcknowledge(messages);
                } else {
                    messages.forEach(message -> found.add(text(message)));
                    consumer.acknowledge(messages);
                }
            }
            same(new HashSet<>(numbered(25)), found, "messages");
            none(consumer, 500);
        }
        return null;
    }

    private String listener() throws Exception {
        String topic = topic("listener");
        BlockingQueue<String> found = new LinkedBlockingQueue<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Failover).receiverQueueSize(5)
                .messageListener((from, message) -> {
                    found.add(text(message));
                    from.acknowledgeAsync(message);
                }).subscribe()) {
            publish(topic, 20);
            for (String expected : numbered(20)) {
                same(expected, String.valueOf(found.poll(WAIT_SECONDS, TimeUnit.SECONDS)), "in order");
            }
            consumer.pause();
            publish(topic, 20);
            consumer.resume();
            for (String expected : numbered(20)) {
                same(expected, String.valueOf(found.poll(WAIT_SECONDS, TimeUnit.SECONDS)), "in order after a pause");
            }
        }
        return null;
    }

    private String backoff() throws Exception {
        String topic = topic("backoff");
        MultiplierRedeliveryBackoff growing = MultiplierRedeliveryBackoff.builder()
                .minDelayMs(50).maxDelayMs(400).multiplier(2).build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryBackoff(growing)
                .ackTimeout(10, TimeUnit.SECONDS).ackTimeoutRedeliveryBackoff(growing).subscribe()) {
            publish(topic, 1);
            for (int times = 0; times < 4; times++) {
                Message<byte[]> message = next(consumer);
                same(times, message.getRedeliveryCount(), "redeliveries");
                if (times < 3) {
                    consumer.negativeAcknowledge(message);
                } else {
                    consumer.acknowledge(message);
                }
            }
        }
        return null;
    }

    /** Two consumers that name their ranges of hashes; a third one of the same range is refused. */
    private String keyRanges() throws Exception {
        String topic = topic("ranges");
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        try {
            for (int n = 0; n < 2; n++) {
                Range range = Range.of(n * 32_768, n * 32_768 + 32_767);
                consumers.add(ranged(topic, range));
            }
            try {
                ranged(topic, Range.of(0, 10)).close();
                throw new AssertionError("a range that is taken was given again");
            } catch (org.apache.pulsar.client.api.PulsarClientException refused) {
                check(!String.valueOf(refused.getMessage()).isEmpty(), "no reason");
            }
            try (Producer<byte[]> producer = client.newProducer().topic(topic)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
                for (String text : numbered(40)) {
                    producer.newMessage().key(text).value(bytes(text)).sendAsync();
                }
                producer.flush();
            }
            Set<String> found = new HashSet<>();
            Set<Consumer<byte[]>> had = new HashSet<>();
            for (int empty = 0; found.size() < 40 && empty < 200; ) {
                for (Consumer<byte[]> consumer : consumers) {
                    Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        empty++;
                    } else {
                        found.add(text(message));
                        had.add(consumer);
                        consumer.acknowledge(message);
                    }
                }
            }
            same(new HashSet<>(numbered(40)), found, "messages");
            same(2, had.size(), "consumers that had messages");
        } finally {
            for (Consumer<byte[]> consumer : consumers) {
                consumer.close();
            }
        }
        return null;
    }

    private Consumer<byte[]> ranged(String topic, Range range) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range)).subscribe();
    }

    private String subscriptionProperties() throws Exception {
        String topic = topic("properties");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").consumerName("c")
                .subscriptionProperties(Map.of("team", "billing")).property("host", "h1")
                .priorityLevel(1).replicateSubscriptionState(false).subscribe()) {
            same("billing", admin.topics().getSubscriptionProperties(topic, "s").get("team"), "its property");
            same("h1", admin.topics().getStats(topic).getSubscriptions().get("s").getConsumers().get(0)
                    .getMetadata().get("host"), "the consumer's metadata");
            publish(topic, 3);
            next(consumer);
            same(1, consumer.getLastMessageIds().size(), "topics with a last message");
        }
        return null;
    }

    private String severalTopics() throws Exception {
        List<String> topics = List.of(topic("several-a"), topic("several-b"));
        admin.topics().createPartitionedTopic(topics.get(1), 3);
        try (Consumer<byte[]> consumer = client.newConsumer().topics(topics).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).subscribe()) {
            for (String topic : topics) {
                publish(topic, 10);
            }
            List<String> found = new ArrayList<>(texts(consumer, 20));
            found.sort(null);
            List<String> expected = new ArrayList<>(numbered(10));
            expected.addAll(numbered(10));
            expected.sort(null);
            same(expected, found, "messages of both");
            consumer.unsubscribe();
        }
        return null;
    }

    private String endOfTopic() throws Exception {
        String topic = topic("end");
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        org.apache.pulsar.client.api.MessageListener<byte[]> listener =
                new org.apache.pulsar.client.api.MessageListener<>() {
                    @Override
                    public void received(Consumer<byte[]> consumer, Message<byte[]> message) {
                        told.add(text(message));
                        consumer.acknowledgeAsync(message);
                    }

                    @Override
                    public void reachedEndOfTopic(Consumer<byte[]> consumer) {
                        told.add("end");
                    }
                };
        publish(topic, 2);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .messageListener(listener).subscribe()) {
            admin.topics().terminateTopic(topic);
            for (String expected : List.of("m0", "m1", "end")) {
                same(expected, String.valueOf(told.poll(WAIT_SECONDS, TimeUnit.SECONDS)), "what the listener is told");
            }
            check(consumer.hasReachedEndOfTopic(), "the consumer knows the end");
        }
        return null;
    }

    private String noReceiverQueue() throws Exception {
        String topic = topic("no-queue");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").receiverQueueSize(0)
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (String text : numbered(5)) {
                producer.send(bytes(text));
            }
            for (String text : numbered(5)) {
                Message<byte[]> message = consumer.receive();  // the client has no receive with a time limit here
                same(text, text(message), "payload");
                consumer.acknowledge(message);
            }
        }
        return null;
    }

    private String nonPersistent() throws Exception {
        String topic = topic("plain").replace("persistent://", "non-persistent://");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            publish(topic, 10);
            same(numbered(10), texts(consumer, 10), "payloads");
        }
        return null;
    }

    /** The broker and the bookies see bytes that they cannot read; who has no key can have them as they are. */
    private String encryption() throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2_048);
        KeyPair pair = generator.generateKeyPair();
        CryptoKeyReader keys = new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(pem("PUBLIC KEY", pair.getPublic().getEncoded()), metadata);
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                // The older clients know PKCS #1 alone, which PKCS #8 wraps.
                byte[] wrapped = pair.getPrivate().getEncoded();
                byte[] own = Arrays.copyOfRange(wrapped, PKCS8_HEADER_BYTES, wrapped.length);
                return new EncryptionKeyInfo(pem("RSA PRIVATE KEY", own), metadata);
            }
        };
        String topic = topic("encrypted");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .cryptoKeyReader(keys).subscribe();
                Consumer<byte[]> stranger = client.newConsumer().topic(topic).subscriptionName("stranger")
                        .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic)
                        .addEncryptionKey("app").cryptoKeyReader(keys).create()) {
            producer.send(bytes("secret words"));
            same("secret words", text(next(consumer)), "payload");
            Message<byte[]> sealed = next(stranger);
            check(!text(sealed).contains("secret words"), "the payload was stored as it is");
            check(sealed.getEncryptionCtx().isPresent(), "nothing says how it was encrypted");
        }
        return null;
    }

    private static byte[] pem(String kind, byte[] key) {
        String body = Base64.getMimeEncoder(64, bytes("\n")).encodeToString(key);
        return bytes("-----BEGIN " + kind + "-----\n" + body + "\n-----END " + kind + "-----\n");
    }
}

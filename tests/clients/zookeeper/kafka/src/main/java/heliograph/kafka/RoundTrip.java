package heliograph.kafka;

import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A user of Kafka: the arguments are the broker's address and one of {@code before} and {@code after} its restart. */
public final class RoundTrip {
    private static final String TOPIC = "flights";
    private static final int RECORDS = 500;
    private static final int WAIT_SECONDS = 90;

    private RoundTrip() {}

    public static void main(String[] arguments) throws Exception {
        String broker = arguments[0];
        Properties common = new Properties();
        common.put("bootstrap.servers", broker);
        boolean isFirst = arguments[1].equals("before");
        try (Admin admin = Admin.create(common)) {
            if (isFirst) {
                scenario("create_topic", () -> createTopic(admin));
                scenario("produce_consume", () -> produceAndConsume(broker, 0));
                scenario("transactional_producer", () -> transaction(broker));
                scenario("administer", () -> administer(admin));
            } else {
                scenario("restarted", () -> restarted(admin, broker));
            }
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static void scenario(String name, Work work) {
        String error = "";
        try {
            work.run();
        } catch (Exception | AssertionError failure) {
            error = failure.toString().replaceAll("[^ !#-\\[\\]-~]", " ");
        }
        System.out.println("{\"scenario\": \"" + name + "\", \"ok\": " + error.isEmpty() + ", \"detail\": \"" + error
                + "\"}");
        System.out.flush();
    }

    private static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static void createTopic(Admin admin) throws Exception {
        NewTopic topic = new NewTopic(TOPIC, 3, (short) 1).configs(Map.of("retention.ms", "3600000"));
        admin.createTopics(List.of(topic)).all().get(WAIT_SECONDS, TimeUnit.SECONDS);
        same(Set.of(TOPIC), admin.listTopics().names().get(WAIT_SECONDS, TimeUnit.SECONDS));
    }

    private static Map<String, Object> settings(String broker, Map<String, Object> further) {
        Map<String, Object> settings = new HashMap<>(further);
        settings.put("bootstrap.servers", broker);
        return settings;
    }

    /** Publish with the default producer, which is idempotent, and read with a group all that was published so far. */
    private static void produceAndConsume(String broker, int begin) throws Exception {
        Map<String, Object> settings = settings(broker, Map.of(ProducerConfig.LINGER_MS_CONFIG, 5));
        Map<Integer, Long> acknowledged = new HashMap<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            Map<Integer, Future<RecordMetadata>> sent = new TreeMap<>();
            for (int number = begin; number < begin + RECORDS; number++) {
                sent.put(number, producer.send(new ProducerRecord<>(TOPIC, "key-" + number % 7, "value-" + number)));
            }
            for (Map.Entry<Integer, Future<RecordMetadata>> one : sent.entrySet()) {
                acknowledged.put(one.getKey(), one.getValue().get(WAIT_SECONDS, TimeUnit.SECONDS).offset());
            }
        }
        consume(broker, "group-" + begin, begin + RECORDS);
        same(RECORDS, acknowledged.size());
    }

    /** Read with a new group from the beginning: each value comes once, those of a key in the order of publishing. */
    private static void consume(String broker, String group, int expected) {
        Map<String, Object> settings = settings(
                broker,
                Map.of(ConsumerConfig.GROUP_ID_CONFIG, group, ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest"));
        Set<String> found = new HashSet<>();
        Map<String, Integer> last = new HashMap<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(TOPIC));
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
            while (found.size() < expected && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    int number = Integer.parseInt(record.value().substring("value-".length()));
                    same("key-" + number % 7, record.key());
                    same(true, found.add(record.value()));
                    same(true, last.getOrDefault(record.key(), -1) < number);
                    last.put(record.key(), number);
                }
            }
            consumer.commitSync();
        }
        same(expected, found.size());
    }

    private static void transaction(String broker) throws Exception {
        String topic = "paid";
        Map<String, Object> settings = settings(broker, Map.of(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "payer"));
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "aborted")).get(WAIT_SECONDS, TimeUnit.SECONDS);
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "committed")).get(WAIT_SECONDS, TimeUnit.SECONDS);
            producer.commitTransaction();
        }
        Map<String, Object> reading = settings(
                broker,
                Map.of(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed", "enable.auto.commit", "false",
                        ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest"));
        Set<String> found = new HashSet<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
            while (found.isEmpty() && System.nanoTime() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
            }
        }
        same(Set.of("committed"), found);
    }

    private static void administer(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("short", 1, (short) 1))).all().get(WAIT_SECONDS, TimeUnit.SECONDS);
        admin.createPartitions(Map.of("short", NewPartitions.increaseTo(2))).all().get(WAIT_SECONDS, TimeUnit.SECONDS);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, "short");
        AlterConfigOp change =
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "70000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get(WAIT_SECONDS, TimeUnit.SECONDS);
        eventually(() -> admin.describeConfigs(List.of(resource)).all().get(WAIT_SECONDS, TimeUnit.SECONDS)
                .get(resource).get("max.message.bytes").value().equals("70000"));
        eventually(() -> admin.describeTopics(List.of("short")).allTopicNames().get(WAIT_SECONDS, TimeUnit.SECONDS)
                .get("short").partitions().size() == 2);
        admin.deleteTopics(List.of("short")).all().get(WAIT_SECONDS, TimeUnit.SECONDS);
        eventually(() -> !admin.listTopics().names().get(WAIT_SECONDS, TimeUnit.SECONDS).contains("short"));
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void eventually(Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
        while (!condition.holds()) {
            same(true, System.nanoTime() < deadline);
            Thread.sleep(100);
        }
    }

    private static void restarted(Admin admin, String broker) throws Exception {
        same(true, admin.listTopics().names().get(WAIT_SECONDS, TimeUnit.SECONDS).contains(TOPIC));
        same("3600000", admin.describeConfigs(List.of(new ConfigResource(ConfigResource.Type.TOPIC, TOPIC))).all()
                .get(WAIT_SECONDS, TimeUnit.SECONDS).values().iterator().next().get("retention.ms").value());
        consume(broker, "group-after", RECORDS);
        produceAndConsume(broker, RECORDS);
    }
}

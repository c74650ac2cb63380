package heliograph.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TableView;

/** Reading and publishing in every other way: readers, seeks, views, codecs, chunks, patterns, partitions, modes. */
final class Topics extends Scenarios {
    private static final int POLLS_MAX = 1_000;

    private Topics(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("partition_growth", this::partitionGrowth);
        scenario("regex", this::regex);
        scenario("compaction", this::compaction);
        scenario("table_view", this::tableView);
        scenario("chunking", this::chunking);
        scenario("codec_lz4", () -> codec(CompressionType.LZ4));
        scenario("codec_zlib", () -> codec(CompressionType.ZLIB));
        scenario("codec_zstd", () -> codec(CompressionType.ZSTD));
        scenario("codec_snappy", () -> codec(CompressionType.SNAPPY));
        scenario("reader", this::reader);
        scenario("seek_id", this::seekId);
        scenario("seek_time", this::seekTime);
        scenario("partitions", this::partitions);
        scenario("access_modes", this::accessModes);
        scenario("deduplication", this::deduplication);
    }

    public static void main(String[] arguments) throws Exception {
        new Topics(arguments[0], arguments[1]).runAll(arguments, 4);
    }

    private String partitionGrowth() throws Exception {
        String topic = topic("growing");
        admin.topics().createPartitionedTopic(topic, 2);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
            producer.send(bytes("before"));
            consumer.acknowledge(next(consumer));
            admin.topics().updatePartitionedTopic(topic, 4);
            same(4, admin.topics().getPartitionedTopicMetadata(topic).partitions, "partitions");
            Set<String> names = new HashSet<>();
            for (int n = 0; n < POLLS_MAX && names.size() < 4; n++) {
                producer.send(bytes("after"));
                Message<byte[]> message = next(consumer);
                names.add(message.getTopicName());
                consumer.acknowledge(message);
                Thread.sleep(50);
            }
            same(4, names.size(), "partitions that messages came from");
        }
        return null;
    }

    /** With the default period of discovery, a minute: a new topic is seen at once because the broker tells of it. */
    private String regex() throws Exception {
        String prefix = topic("regex");
        try (Producer<byte[]> one = client.newProducer().topic(prefix + "-one").create();
                Producer<byte[]> other = client.newProducer().topic(topic("unrelated")).create();
                Consumer<byte[]> consumer = client.newConsumer().topicsPattern(prefix + "-.*").subscriptionName("s")
                        .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            other.send(bytes("never"));
            one.send(bytes("one"));
            same(List.of("one"), texts(consumer, 1), "of the topic that there was");
            try (Producer<byte[]> two = client.newProducer().topic(prefix + "-two").create()) {
                two.send(bytes("two"));
                same(List.of("two"), texts(consumer, 1), "of the new topic");
            }
            none(consumer, 200);
        }
        return null;
    }

    private String compaction() throws Exception {
        String topic = topic("compacted");
        try (Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(CompressionType.LZ4)
                .create()) {
            for (int n = 0; n < 100; n++) {
                producer.newMessage().key("k" + n % 5).value(bytes(String.valueOf(n))).sendAsync();
            }
            producer.flush();
        }
        admin.topics().triggerCompaction(topic);
        LongRunningProcessStatus.Status status = LongRunningProcessStatus.Status.RUNNING;
        for (int n = 0; n < POLLS_MAX && status == LongRunningProcessStatus.Status.RUNNING; n++) {
            Thread.sleep(100);
            status = admin.topics().compactionStatus(topic).status;
        }
        same(LongRunningProcessStatus.Status.SUCCESS, status, "status of the compaction");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").readCompacted(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            same(List.of("95", "96", "97", "98", "99"), texts(consumer, 5), "the last message of each key");
            none(consumer, 200);
        }
        return null;
    }

    private String tableView() throws Exception {
        String topic = topic("table");
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (int n = 0; n < 20; n++) {
                producer.newMessage().key("k" + n % 4).value("v" + n).send();
            }
            try (TableView<String> view = client.newTableViewBuilder(Schema.STRING).topic(topic)
                    .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
                same(4, view.size(), "keys");
                same("v19", view.get("k3"), "latest value");
                CompletableFuture<String> heard = new CompletableFuture<>();
                view.listen((key, value) -> {
                    if (key.equals("k0") && "new".equals(value)) {
                        heard.complete(value);
                    }
                });
                producer.newMessage().key("k0").value("new").send();
                heard.get(WAIT_SECONDS, TimeUnit.SECONDS);
                producer.newMessage().key("k1").value(null).send();
                for (int n = 0; n < POLLS_MAX && view.containsKey("k1"); n++) {
                    Thread.sleep(50);
                }
                same(Set.of("k0", "k2", "k3"), new HashSet<>(view.keySet()), "keys after a null value");
            }
        }
        return null;
    }

    private String chunking() throws Exception {
        String topic = topic("chunks");
        byte[] large = new byte[12 << 20];
        new Random(7).nextBytes(large);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .enableChunking(true).create()) {
            MessageId sent = producer.newMessage().property("p", "v").value(large).send();
            producer.send(bytes("small"));
            Message<byte[]> message = next(consumer);
            check(Arrays.equals(large, message.getData()), "the payload of the chunked message differs");
            same("v", message.getProperty("p"), "property");
            consumer.acknowledge(message);
            same(List.of("small"), texts(consumer, 1), "the message after it");
        }
        return null;
    }

    private String codec(CompressionType type) throws Exception {
        String topic = topic("codec");
        String text = "compress me ".repeat(400);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> batches = client.newProducer().topic(topic).compressionType(type).create();
                Producer<byte[]> singles = client.newProducer().topic(topic).compressionType(type)
                        .enableBatching(false).create()) {
            for (int n = 0; n < 10; n++) {
                batches.sendAsync(bytes(text + n));
            }
            batches.flush();
            singles.send(bytes(text));
            List<String> expected = new ArrayList<>();
            for (int n = 0; n < 10; n++) {
                expected.add(text + n);
            }
            expected.add(text);
            same(expected, texts(consumer, 11), "payloads");
        }
        List<Message<byte[]>> peeked = admin.topics().peekMessages(topic, "s", 1);
        check(peeked.isEmpty(), "nothing is left to peek at");
        return null;
    }

    private String reader() throws Exception {
        String topic = topic("reader");
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (String text : numbered(10)) {
                ids.add(producer.send(bytes(text)));
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                same(numbered(10), rest(reader), "from the first");
                check(!reader.hasMessageAvailable(), "nothing is left");
                producer.send(bytes("late"));
                check(reader.hasMessageAvailable(), "a message came");
                same(List.of("late"), rest(reader), "after the end");
                reader.seek(ids.get(5));
                same(List.of("m6", "m7", "m8", "m9", "late"), rest(reader), "after a seek");
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(ids.get(3)).create()) {
                same("m4", new String(reader.readNext(WAIT_SECONDS, TimeUnit.SECONDS).getData()), "after an id");
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(ids.get(3))
                    .startMessageIdInclusive().create()) {
                same("m3", new String(reader.readNext(WAIT_SECONDS, TimeUnit.SECONDS).getData()), "from an id");
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.latest)
                    .startMessageIdInclusive().create()) {
                check(reader.hasMessageAvailable(), "the last message is available");
                same("late", new String(reader.readNext(WAIT_SECONDS, TimeUnit.SECONDS).getData()), "the last one");
            }
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.latest).create()) {
                check(!reader.hasMessageAvailable(), "nothing is after the end");
            }
        }
        return null;
    }

    private static List<String> rest(Reader<byte[]> reader) throws PulsarClientException {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(new String(reader.readNext(WAIT_SECONDS, TimeUnit.SECONDS).getData(), StandardCharsets.UTF_8));
        }
        return found;
    }

    private String seekId() throws Exception {
        String topic = topic("seek-id");
        List<MessageId> ids = new ArrayList<>();
        // The client drops messages of a batch whose acknowledgements it has not sent yet, also after a seek: it sends
        // them at once.
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).startMessageIdInclusive().subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic)
                        .batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (String text : numbered(10)) {
                sent.add(producer.sendAsync(bytes(text)));
            }
            producer.flush();
            for (CompletableFuture<MessageId> one : sent) {
                ids.add(one.get());
            }
            same(numbered(10), texts(consumer, 10), "all");
            consumer.seek(ids.get(4));
            same(numbered(10).subList(4, 10), texts(consumer, 6), "from the id, within a batch");
            consumer.seek(MessageId.earliest);
            same(numbered(10), texts(consumer, 10), "from the first");
            consumer.seek(MessageId.latest);
            producer.send(bytes("late"));
            same("late", texts(consumer, 1).get(0), "from the end");
        }
        return null;
    }

    private String seekTime() throws Exception {
        String topic = topic("seek-time");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (String text : numbered(5)) {
                producer.send(bytes(text));
            }
            Thread.sleep(50);
            long middle = System.currentTimeMillis();
            Thread.sleep(50);
            producer.send(bytes("m5"));
            producer.send(bytes("m6"));
            texts(consumer, 7);
            consumer.seek(middle);
            same(List.of("m5", "m6"), texts(consumer, 2), "from the time");
            consumer.seek(0L);
            same(numbered(7), texts(consumer, 7), "from the first");
        }
        return null;
    }

    private String partitions() throws Exception {
        String topic = topic("parts");
        admin.topics().createPartitionedTopic(topic, 3);
        same(3, client.getPartitionsForTopic(topic).get().size(), "partitions by the client");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int n = 0; n < 30; n++) {
                producer.newMessage().key("k" + n).value(bytes("m" + n)).sendAsync();
            }
            producer.flush();
            Map<String, Integer> counts = new TreeMap<>();
            Set<String> found = new HashSet<>();
            for (int n = 0; n < 30; n++) {
                Message<byte[]> message = next(consumer);
                counts.merge(message.getTopicName(), 1, Integer::sum);
                found.add(new String(message.getData(), StandardCharsets.UTF_8));
                consumer.acknowledge(message);
            }
            same(new HashSet<>(numbered(30)), found, "messages");
            same(3, counts.size(), "partitions with messages");
        }
        return null;
    }

    private String accessModes() throws Exception {
        String topic = topic("modes");
        Producer<byte[]> first = client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
        try {
            client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create().close();
            throw new AssertionError("a second exclusive producer was let in");
        } catch (PulsarClientException.ProducerFencedException expected) {
            // There is one.
        }
        try {
            client.newProducer().topic(topic).create().close();
            throw new AssertionError("a shared producer was let in");
        } catch (PulsarClientException.ProducerBusyException expected) {
            // The exclusive one is open.
        }
        CompletableFuture<Producer<byte[]>> waiting = client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(300);
        check(!waiting.isDone(), "it waits");
        first.close();
        Producer<byte[]> second = waiting.get(WAIT_SECONDS, TimeUnit.SECONDS);
        second.send(bytes("second"));
        try (Producer<byte[]> third = client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create()) {
            third.send(bytes("third"));
            try {
                second.send(bytes("fenced"));
                throw new AssertionError("a fenced producer published");
            } catch (PulsarClientException.ProducerFencedException
                    | PulsarClientException.AlreadyClosedException expected) {
                // It was fenced.
            }
        }
        return null;
    }

    private String deduplication() throws Exception {
        String topic = topic("dedup");
        admin.topics().createNonPartitionedTopic(topic);
        admin.topicPolicies().setDeduplicationStatus(topic, true);
        for (int n = 0; n < POLLS_MAX && !"Enabled".equals(admin.topics().getStats(topic).getDeduplicationStatus()); n++) {
            Thread.sleep(50);
        }
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            for (int round = 0; round < 2; round++) {
                try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("one")
                        .sendTimeout(0, TimeUnit.SECONDS).enableBatching(round == 1).create()) {
                    same(round == 0 ? -1L : 4L, producer.getLastSequenceId(), "last sequence id");
                    for (int n = 0; n < 5 + round; n++) {
                        producer.newMessage().sequenceId(n).value(bytes("m" + n)).send();
                    }
                }
            }
            same(numbered(6), texts(consumer, 6), "each message once");
            none(consumer, 300);
        }
        return null;
    }
}

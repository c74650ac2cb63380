package heliograph.tables;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Publishes one part of the messages of topics. After the address of a broker and the number of the part come, for each
 * topic, its name and the values of its cell's axes: codec, batching, schema and keys.
 */
public final class Writer {
    private static final int MESSAGES = 30;
    private static final int LONG_BYTES = 150_000;
    private static final int ARGUMENTS = 5; // of a topic

    /** A record of the topics with schemas. */
    public static class Reading {
        public int number;
        public String text;

        public Reading() {}

        Reading(int number, String text) {
            this.number = number;
            this.text = text;
        }
    }

    private final PulsarClient client;
    private final String topic;
    private final String codec;
    private final String batching;
    private final String keys;

    private Writer(PulsarClient client, String topic, String codec, String batching, String keys) {
        this.client = client;
        this.topic = topic;
        this.codec = codec;
        this.batching = batching;
        this.keys = keys;
    }

    public static void main(String[] arguments) throws Exception {
        int part = Integer.parseInt(arguments[1]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int at = 2; at < arguments.length; at += ARGUMENTS) {
                String schema = arguments[at + 3];
                new Writer(client, arguments[at], arguments[at + 1], arguments[at + 2], arguments[at + 4])
                        .write(schema, part);
                System.out.println("{\"scenario\": \"" + arguments[at] + "-" + part + "\", \"ok\": true}");
            }
        }
        System.exit(0);
    }

    private void write(String schema, int part) throws Exception {
        switch (schema) {
            case "string" -> publish(Schema.STRING, part, (n, text) -> text);
            case "json" -> publish(Schema.JSON(Reading.class), part, Reading::new);
            case "avro" -> publish(Schema.AVRO(Reading.class), part, Reading::new);
            default -> publish(Schema.BYTES, part, (n, text) -> bytes(n, text));
        }
    }

    private interface Value<T> {
        T of(int number, String text);
    }

    private byte[] bytes(int number, String text) {
        if (batching.equals("chunks") && number % 5 == 3) {
            byte[] longOne = new byte[LONG_BYTES];
            new Random(number).nextBytes(longOne);
            return longOne;
        }
        return text.getBytes(StandardCharsets.UTF_16);
    }

    private <T> void publish(Schema<T> schema, int part, Value<T> value) throws Exception {
        ProducerBuilder<T> builder = client.newProducer(schema).topic(topic).producerName("writer-" + part)
                .compressionType(CompressionType.valueOf(codec.toUpperCase())).blockIfQueueFull(true);
        switch (batching) {
            case "single" -> builder.enableBatching(false);
            case "chunks" -> builder.enableBatching(false).enableChunking(true);
            default -> builder.enableBatching(true).batchingMaxMessages(7).batchingMaxPublishDelay(1, TimeUnit.HOURS);
        }
        if (batching.equals("by-key")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<T> producer = builder.create()) {
            for (int number = part * MESSAGES; number < (part + 1) * MESSAGES; number++) {
                TypedMessageBuilder<T> message = producer.newMessage();
                message.value(number % 11 == 10 ? null : value.of(number, number % 9 == 8 ? "" : "reading " + number));
                if (keys.equals("some") && number % 3 != 0) {
                    message.keyBytes(new byte[] {(byte) 0xff, (byte) (number % 7)});
                } else if (keys.equals("text") || keys.equals("ordering")) {
                    message.key("key \u2603 " + number % 7);
                }
                if (keys.equals("ordering") && number % 2 != 0) {
                    message.orderingKey(("order " + number % 4).getBytes(StandardCharsets.UTF_8));
                }
                if (number % 4 == 1) {
                    message.properties(Collections.singletonMap("number", "" + number));
                }
                if (number % 5 == 2) {
                    message.eventTime(1_600_000_000_000L + number);
                }
                sent.add(message.sendAsync());
                if (batching.equals("of-one")) {
                    producer.flush();
                }
            }
            producer.flush();
            for (CompletableFuture<MessageId> one : sent) {
                one.get(60, TimeUnit.SECONDS);
            }
        }
    }
}

package heliograph.clients;

import com.google.protobuf.Timestamp;
import java.nio.ByteBuffer;
import java.sql.Time;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.client.api.schema.RecordSchemaBuilder;
import org.apache.pulsar.client.api.schema.SchemaBuilder;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/** Every type of schema, and schemas that change. */
final class Schemas extends Scenarios {
    /** A record as users write them. */
    public static class User {
        public String name;
        public int age;
        public List<String> tags;

        public User() {}

        User(String name, int age) {
            this.name = name;
            this.age = age;
            this.tags = List.of("a", "b");
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof User && ((User) other).name.equals(name) && ((User) other).age == age
                    && Objects.equals(((User) other).tags, tags);
        }

        @Override
        public int hashCode() {
            return name.hashCode();
        }

        @Override
        public String toString() {
            return name + "/" + age + tags;
        }
    }

    private Schemas(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("schema_bytes", () -> trip("bytes", Schema.BYTES, bytes("x")));
        scenario("schema_string", () -> trip("string", Schema.STRING, "text \u00e9"));
        scenario("schema_primitives", this::primitives);
        scenario("schema_json", () -> trip("json", Schema.JSON(User.class), new User("u", 3)));
        scenario("schema_avro", () -> trip("avro", Schema.AVRO(User.class), new User("u", 3)));
        scenario("schema_protobuf", this::protobuf);
        scenario("schema_key_value", this::keyValue);
        scenario("schema_auto", this::auto);
        scenario("schema_evolution", this::evolution);
        scenario("schema_incompatible", this::incompatible);
    }

    public static void main(String[] arguments) throws Exception {
        new Schemas(arguments[0], arguments[1]).runAll(arguments, 4);
    }

    private <T> String trip(String name, Schema<T> schema, T value) throws Exception {
        String topic = topic("schema-" + name);
        try (Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.newMessage().key("k").value(value).send();
            Message<T> message = next(consumer);
            if (value instanceof byte[]) {
                same(new String((byte[]) value), new String((byte[]) message.getValue()), name);
            } else {
                same(value, message.getValue(), name);
            }
            consumer.acknowledge(message);
        }
        if (schema.getSchemaInfo().getType() != SchemaType.BYTES) {
            same(schema.getSchemaInfo().getType(), admin.schemas().getSchemaInfo(topic).getType(), "type by the admin");
        }
        return null;
    }

    private String primitives() throws Exception {
        trip("int8", Schema.INT8, (byte) 7);
        trip("int16", Schema.INT16, (short) -300);
        trip("int32", Schema.INT32, 70_000);
        trip("int64", Schema.INT64, 1L << 40);
        trip("float", Schema.FLOAT, 1.5f);
        trip("double", Schema.DOUBLE, -2.25);
        trip("bool", Schema.BOOL, true);
        trip("bytebuffer", Schema.BYTEBUFFER, ByteBuffer.wrap(bytes("b")));
        trip("date", Schema.DATE, new Date(1_700_000_000_000L));
        trip("time", Schema.TIME, new Time(3_600_000L));
        trip("timestamp", Schema.TIMESTAMP, new java.sql.Timestamp(1_700_000_000_123L));
        trip("instant", Schema.INSTANT, Instant.ofEpochSecond(1_700_000_000L, 5));
        trip("localdate", Schema.LOCAL_DATE, LocalDate.of(2024, 2, 29));
        trip("localtime", Schema.LOCAL_TIME, LocalTime.of(1, 2, 3));
        trip("localdatetime", Schema.LOCAL_DATE_TIME, LocalDateTime.of(2024, 2, 29, 1, 2, 3));
        return null;
    }

    private String protobuf() throws Exception {
        Timestamp value = Timestamp.newBuilder().setSeconds(5).setNanos(6).build();
        trip("protobuf", Schema.PROTOBUF(Timestamp.class), value);
        trip("protobuf-native", Schema.PROTOBUF_NATIVE(Timestamp.class), value);
        return null;
    }

    private String keyValue() throws Exception {
        KeyValue<String, User> pair = new KeyValue<>("key", new User("v", 1));
        for (KeyValueEncodingType type : KeyValueEncodingType.values()) {
            Schema<KeyValue<String, User>> schema = Schema.KeyValue(Schema.STRING, Schema.AVRO(User.class), type);
            String topic = topic("schema-kv");
            try (Consumer<KeyValue<String, User>> consumer = client.newConsumer(schema).topic(topic)
                            .subscriptionName("s").subscribe();
                    Producer<KeyValue<String, User>> producer = client.newProducer(schema).topic(topic).create()) {
                producer.newMessage().value(pair).send();
                same(pair, next(consumer).getValue(), "key and value, " + type);
            }
            same(SchemaType.KEY_VALUE, admin.schemas().getSchemaInfo(topic).getType(), "type by the admin");
        }
        return null;
    }

    private String auto() throws Exception {
        String topic = topic("schema-auto");
        Schema<User> schema = Schema.AVRO(User.class);
        try (Producer<User> producer = client.newProducer(schema).topic(topic).create();
                Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                        .subscriptionName("s").subscribe();
                Producer<byte[]> raw = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
            producer.send(new User("a", 1));
            raw.send(schema.encode(new User("b", 2)));
            for (String name : List.of("a", "b")) {
                Message<GenericRecord> message = next(consumer);
                same(name, message.getValue().getField("name"), "field of a generic record");
                same(SchemaType.AVRO, message.getReaderSchema().get().getSchemaInfo().getType(), "its schema");
                consumer.acknowledge(message);
            }
            try {
                raw.send(bytes("\u0001"));
                throw new AssertionError("bytes of another schema were published");
            } catch (Exception expected) {
                // The client checks them against the topic's schema.
            }
        }
        return null;
    }

    private static GenericSchema<GenericRecord> account(boolean hasEmail, SchemaType idType) {
        RecordSchemaBuilder builder = SchemaBuilder.record("account");
        builder.field("id").type(idType);
        if (hasEmail) {
            builder.field("email").type(SchemaType.STRING).optional().defaultValue(null);
        }
        return Schema.generic(builder.build(SchemaType.AVRO));
    }

    private String evolution() throws Exception {
        String topic = topic("schema-evolves");
        GenericSchema<GenericRecord> first = account(false, SchemaType.INT32);
        GenericSchema<GenericRecord> second = account(true, SchemaType.INT32);
        try (Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                .subscriptionName("s").subscribe()) {
            try (Producer<GenericRecord> producer = client.newProducer(first).topic(topic).create()) {
                producer.send(first.newRecordBuilder().set("id", 1).build());
            }
            try (Producer<GenericRecord> producer = client.newProducer(second).topic(topic).create()) {
                producer.send(second.newRecordBuilder().set("id", 2).set("email", "e").build());
            }
            same(1, next(consumer).getValue().getField("id"), "by the first schema");
            Message<GenericRecord> message = next(consumer);
            same("e", message.getValue().getField("email"), "by the second schema");
        }
        same(2, admin.schemas().getAllSchemas(topic).size(), "versions");
        // A consumer of the first version reads what was written by the second, and is not refused.
        try (Consumer<GenericRecord> consumer = client.newConsumer(first).topic(topic).subscriptionName("old")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            same(1, next(consumer).getValue().getField("id"), "the first message, by the first schema");
            same(2, next(consumer).getValue().getField("id"), "the second message, by the first schema");
        }
        return null;
    }

    private String incompatible() throws Exception {
        String topic = topic("schema-breaks");
        client.newProducer(account(false, SchemaType.INT32)).topic(topic).create().close();
        try {
            client.newProducer(account(false, SchemaType.STRING)).topic(topic).create().close();
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            try {
                client.newConsumer(account(false, SchemaType.STRING)).topic(topic).subscriptionName("s").subscribe();
            } catch (PulsarClientException.IncompatibleSchemaException too) {
                return null;
            }
            throw new AssertionError("a consumer of an incompatible schema was let in");
        }
        throw new AssertionError("a producer of an incompatible schema was let in");
    }
}

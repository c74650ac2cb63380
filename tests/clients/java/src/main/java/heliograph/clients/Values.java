package heliograph.clients;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericRecordBuilder;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.shade.org.apache.avro.generic.GenericFixed;
import org.apache.pulsar.shade.org.apache.avro.generic.IndexedRecord;

/**
 * Reads the records of topics by the schema that the registry has, and publishes each again, encoded by this client, to
 * a topic whose name ends with "-back". Arguments: the service's address, a file with "count topic" in each line, and
 * the file for what was read: a line of JSON for each record.
 */
final class Values {
    private static final int WAIT_SECONDS = 60;

    private Values() {}

    public static void main(String[] arguments) throws Exception {
        StringBuilder out = new StringBuilder();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (String line : Files.readAllLines(Path.of(arguments[1]))) {
                String[] parts = line.split(" ", 2);
                copy(client, parts[1], Integer.parseInt(parts[0]), out);
            }
        }
        Files.write(Path.of(arguments[2]), out.toString().getBytes(StandardCharsets.UTF_8));
        System.exit(0);
    }

    private static void copy(PulsarClient client, String topic, int count, StringBuilder out) throws Exception {
        try (Reader<GenericRecord> reader = client.newReader(Schema.AUTO_CONSUME()).topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            Producer<GenericRecord> producer = null;
            for (int number = 0; number < count; number++) {
                Message<GenericRecord> message = reader.readNext(WAIT_SECONDS, TimeUnit.SECONDS);
                GenericRecord record = message.getValue();
                append(out, record.getNativeObject());
                out.append('\n');
                GenericSchema<GenericRecord> schema = generic(message);
                if (producer == null) {
                    producer = client.newProducer(schema).topic(topic + "-back").create();
                }
                GenericRecordBuilder builder = schema.newRecordBuilder();
                for (Field field : schema.getFields()) {
                    builder.set(field, value(record, field));
                }
                producer.send(builder.build());
            }
            producer.close();
        }
    }

    private static GenericSchema<GenericRecord> generic(Message<GenericRecord> message) {
        return Schema.generic(message.getReaderSchema().get().getSchemaInfo());
    }

    /** Returns a field as a user gets it; of JSON the node, as the client takes text for bytes to be base64. */
    private static Object value(GenericRecord record, Field field) {
        if (record.getSchemaType() == SchemaType.JSON) {
            return ((org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode) record.getNativeObject())
                    .get(field.getName());
        }
        return record.getField(field);
    }

    private static void append(StringBuilder out, Object value) {
        if (value instanceof IndexedRecord) {
            IndexedRecord record = (IndexedRecord) value;
            String before = "{";
            for (var field : record.getSchema().getFields()) {
                out.append(before);
                quote(out, field.name());
                out.append(':');
                append(out, record.get(field.pos()));
                before = ",";
            }
            out.append(record.getSchema().getFields().isEmpty() ? "{}" : "}");
        } else if (value instanceof Map) {
            String before = "";
            out.append('{');
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(before);
                quote(out, entry.getKey().toString());
                out.append(':');
                append(out, entry.getValue());
                before = ",";
            }
            out.append('}');
        } else if (value instanceof List) {
            String before = "";
            out.append('[');
            for (Object each : (List<?>) value) {
                out.append(before);
                append(out, each);
                before = ",";
            }
            out.append(']');
        } else if (value instanceof ByteBuffer || value instanceof GenericFixed) {
            ByteBuffer bytes = value instanceof ByteBuffer
                    ? ((ByteBuffer) value).duplicate() : ByteBuffer.wrap(((GenericFixed) value).bytes());
            out.append("{\"bytes\":\"");
            while (bytes.hasRemaining()) {
                out.append(String.format("%02x", bytes.get()));
            }
            out.append("\"}");
        } else if (value instanceof Float || value instanceof Double) {
            double number = ((Number) value).doubleValue();
            out.append(Double.isFinite(number) ? Double.toString(number) : "\"" + number + "\"");
        } else if (value instanceof CharSequence) {
            quote(out, value.toString());
        } else if (value == null || value instanceof Number || value instanceof Boolean
                || value instanceof org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode) {
            out.append(value);
        } else {
            quote(out, value.getClass().getName() + " " + value);
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char each : text.toCharArray()) {
            out.append(each < 0x20 || each == '"' || each == '\\' || each > 0x7e
                    ? String.format("\\u%04x", (int) each) : String.valueOf(each));
        }
        out.append('"');
    }
}

package heliograph.tables;

import com.google.protobuf.GeneratedMessageV3;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Schema;

/**
 * Publishes messages by {@code Schema.PROTOBUF(Class)}, or reads them. After the address of a broker and {@code write}
 * or {@code read} come topics, each with the name of its class and, to write, messages in base64 with commas.
 */
public final class Messages {
    private Messages() {}

    public static void main(String[] arguments) throws Exception {
        boolean writes = arguments[1].equals("write");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int at = 2; at < arguments.length; at += writes ? 3 : 2) {
                Class<? extends GeneratedMessageV3> of =
                        Class.forName(arguments[at + 1]).asSubclass(GeneratedMessageV3.class);
                String detail = writes ? write(client, arguments[at], of, arguments[at + 2]) : read(client, arguments[at], of);
                System.out.println("{\"scenario\":\"" + arguments[at] + "\",\"ok\":true,\"detail\":\"" + detail + "\"}");
            }
        }
    }

    private static <T extends GeneratedMessageV3> String write(
            PulsarClient client, String topic, Class<T> of, String messages) throws Exception {
        Schema<T> schema = Schema.PROTOBUF(of);
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            for (String one : messages.split(",", -1)) {
                producer.send(schema.decode(Base64.getDecoder().decode(one)));
            }
        }
        return "";
    }

    private static <T extends GeneratedMessageV3> String read(PulsarClient client, String topic, Class<T> of)
            throws Exception {
        StringBuilder found = new StringBuilder();
        try (Reader<T> reader = client.newReader(Schema.PROTOBUF(of)).topic(topic).startMessageId(MessageId.earliest)
                .create()) {
            while (reader.hasMessageAvailable()) {
                Message<T> message = reader.readNext(30, TimeUnit.SECONDS);
                found.append(found.length() == 0 ? "" : ",");
                found.append(Base64.getEncoder().encodeToString(message.getValue().toByteArray()));
            }
        }
        return found.toString();
    }
}

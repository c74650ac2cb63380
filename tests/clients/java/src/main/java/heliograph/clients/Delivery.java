package heliograph.clients;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** How messages reach consumers: subscription types, acknowledgements, redelivery, dead letters. */
final class Delivery extends Scenarios {
    private Delivery(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("produce_consume", this::produceConsume);
    }

    public static void main(String[] arguments) throws Exception {
        new Delivery(arguments[0], arguments[1]).runAll(4);
    }

    private String produceConsume() throws Exception {
        String topic = topic("plain");
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (String text : numbered(10)) {
                producer.newMessage().key("k").property("p", text).value(bytes(text)).send();
            }
            for (String text : numbered(10)) {
                Message<byte[]> message = next(consumer);
                same(text, new String(message.getData()), "payload");
                same("k", message.getKey(), "key");
                same(text, message.getProperty("p"), "property");
                consumer.acknowledge(message);
            }
            none(consumer, 200);
        }
        return null;
    }
}

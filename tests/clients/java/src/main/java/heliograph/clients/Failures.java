package heliograph.clients;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Brokers that die or give a topic away under a running client, and what is refused at the start. */
final class Failures extends Scenarios {
    private static final int MESSAGES = 600;
    /** Two of them are the client's own: its event loops wait for calls while they shut down. */
    private static final double REFUSAL_SECONDS_MAX = 10;

    interface Harm {
        void to(String topic) throws Exception;
    }

    private Failures(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("transactions", this::transactions);
        scenario("redirect", this::redirect);
        scenario("entry_metadata", this::entryMetadata);
        scenario("unload", () -> through("unload", topic -> ask("unload", "namespace", "public/default")));
        scenario("broker_death", () -> through("death", topic -> ask("crash_owner", "topic", topic)));
    }

    public static void main(String[] arguments) throws Exception {
        new Failures(arguments[0], arguments[1]).runAll(arguments, 1);
    }

    /**
     * The reason comes with the first answer: a client that asked again would take its whole operation time-out.
     * Clients of the line 3 show only the status of an answer by HTTP.
     */
    private String transactions() throws Exception {
        for (String url : List.of(serviceUrl, webUrl)) {
            long begun = System.nanoTime();
            try {
                PulsarClient.builder().serviceUrl(url).operationTimeout(30, TimeUnit.SECONDS)
                        .enableTransaction(true).build().close();
                throw new AssertionError("a client with transactions was built");
            } catch (PulsarClientException refused) {
                String reason = String.valueOf(refused.getMessage());
                boolean onlyStatus = url.startsWith("http") && reason.endsWith("Not found: Not Found");
                check(onlyStatus || reason.contains("transactions are not offered"), "not plain: " + reason);
                double seconds = (System.nanoTime() - begun) / 1e9;
                System.err.printf("%s: refused after %.1f s%n", url, seconds);
                check(seconds < REFUSAL_SECONDS_MAX, "refused after " + seconds + " s");
            }
        }
        throw new RefusedAsDocumented("`build()` fails: transactions are not offered");
    }

    /** Every broker leads clients to the owner, before and after the topic moved. */
    private String redirect() throws Exception {
        String topic = topic("moves");
        String before = null;
        for (int round = 0; round < 2; round++) {
            for (String host : serviceUrl.substring("pulsar://".length()).split(",")) {
                try (PulsarClient one = PulsarClient.builder().serviceUrl("pulsar://" + host).build();
                        Consumer<byte[]> consumer = one.newConsumer().topic(topic).subscriptionName("s").subscribe();
                        Producer<byte[]> producer = one.newProducer().topic(topic).create()) {
                    producer.send(bytes(host));
                    same(List.of(host), texts(consumer, 1), "through " + host);
                }
            }
            String owner = ask("owner", "topic", topic);
            check(!owner.equals(before), "the topic did not move: " + owner);
            before = owner;
            if (round == 0) {
                through(topic, moving -> ask("move", "topic", moving));
                try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
                    consumer.seek(MessageId.latest);
                }
            }
        }
        return null;
    }

    /** Messages have numbers without gaps and the broker's time, also those that are published after its owner died. */
    private String entryMetadata() throws Exception {
        String topic = topic("entry-metadata");
        long begun = System.currentTimeMillis();
        try (Producer<byte[]> single = client.newProducer().topic(topic).enableBatching(false).create();
                Producer<byte[]> batched = client.newProducer().topic(topic).batchingMaxMessages(4)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            for (int round = 0; round < 2; round++) {
                for (int n = 0; n < 8; n++) {
                    batched.sendAsync(bytes("batched"));
                }
                batched.flush();
                single.send(bytes("single"));
                if (round == 0) {
                    ask("crash_owner", "topic", topic);
                }
            }
        }
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (long expected = 0; expected < 18; expected++) {
                Message<byte[]> message = next(consumer);
                check(message.hasIndex() && message.hasBrokerPublishTime(), "the broker noted nothing");
                same(expected, message.getIndex().get(), "index");
                long time = message.getBrokerPublishTime().get();
                check(time >= begun && time <= System.currentTimeMillis(), "the broker's time is " + time);
            }
        }
        Message<byte[]> last = admin.topics().examineMessage(topic, "latest", 1);
        same(17L, last.getIndex().get(), "index of the last message, by administration");
        check(last.getBrokerPublishTime().get() >= begun, "the time of the last message, by administration");
        return null;
    }

    /** Publishes and consumes while harm is done: nothing is lost, nothing fails, and order holds. */
    private String through(String name, Harm harm) throws Exception {
        String topic = name.startsWith("persistent") ? name : topic(name);
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("through")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Latest)
                        .subscriptionType(SubscriptionType.Failover).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic)
                        .batchingMaxMessages(10).blockIfQueueFull(true).create()) {
            AtomicReference<Throwable> failed = new AtomicReference<>();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            Thread publishing = new Thread(() -> {
                try {
                    for (String text : numbered(MESSAGES)) {
                        sent.add(producer.sendAsync(bytes(text)));
                        Thread.sleep(3);
                    }
                } catch (Throwable error) {
                    failed.set(error);
                }
            });
            publishing.start();
            Set<String> found = new LinkedHashSet<>();
            boolean isHarmed = false;
            while (found.size() < MESSAGES) {
                Message<byte[]> message = consumer.receive(SCENARIO_SECONDS_MAX / 2, TimeUnit.SECONDS);
                check(message != null, "no message any more after " + found.size());
                found.add(new String(message.getData(), StandardCharsets.UTF_8));
                consumer.acknowledge(message);
                if (found.size() > MESSAGES / 4 && !isHarmed) {
                    isHarmed = true;
                    harm.to(topic);
                }
            }
            publishing.join();
            check(failed.get() == null, "publishing failed: " + failed.get());
            for (CompletableFuture<MessageId> one : sent) {
                one.get(WAIT_SECONDS, TimeUnit.SECONDS);
            }
            same(numbered(MESSAGES), new ArrayList<>(found), "messages, each at its first delivery, in order");
        }
        return null;
    }
}

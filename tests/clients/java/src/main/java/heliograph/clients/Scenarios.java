package heliograph.clients;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;

/** Runs scenarios and writes a result line for each; the groups of scenarios are its subclasses. */
abstract class Scenarios {
    static final int WAIT_SECONDS = 60;
    static final int SCENARIO_SECONDS_MAX = 150;

    /** A scenario returns a detail, or throws. */
    interface Scenario {
        String run() throws Exception;
    }

    /** Thrown by a scenario of something that is refused, as it has to be. */
    static final class RefusedAsDocumented extends Exception {
        RefusedAsDocumented(String reason) {
            super(reason);
        }
    }

    private static final Object OUTPUT = new Object();
    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    final String serviceUrl;
    final String webUrl;
    final PulsarClient client;
    final PulsarAdmin admin;
    private final Map<String, Scenario> scenarios = new LinkedHashMap<>();

    Scenarios(String serviceUrl, String webUrl) throws Exception {
        this.serviceUrl = serviceUrl;
        this.webUrl = webUrl;
        client = PulsarClient.builder().serviceUrl(serviceUrl).operationTimeout(30, TimeUnit.SECONDS).build();
        admin = PulsarAdmin.builder().serviceHttpUrl(webUrl).build();
    }

    final void scenario(String name, Scenario work) {
        scenarios.put(name, work);
    }

    /** Runs the scenarios that are named after the two addresses, several at a time, and ends the process. */
    final void runAll(String[] arguments, int atOnce) throws Exception {
        scenarios.keySet().retainAll(List.of(arguments).subList(2, arguments.length));
        ExecutorService pool = Executors.newFixedThreadPool(atOnce);
        List<Future<?>> running = new ArrayList<>();
        scenarios.forEach((name, work) -> running.add(pool.submit(() -> runOne(name, work))));
        for (Future<?> one : running) {
            one.get();
        }
        pool.shutdownNow();
        admin.close();
        client.close();
        System.out.flush();
        System.exit(0);
    }

    private void runOne(String name, Scenario work) {
        ExecutorService alone = Executors.newSingleThreadExecutor();
        Future<String> outcome = alone.submit(work::run);
        long begun = System.nanoTime();
        try {
            String detail = outcome.get(SCENARIO_SECONDS_MAX, TimeUnit.SECONDS);
            result(name, true, false, detail == null ? "" : detail);
        } catch (java.util.concurrent.ExecutionException failed) {
            Throwable cause = failed.getCause();
            if (cause instanceof RefusedAsDocumented) {
                result(name, true, true, cause.getMessage());
            } else {
                cause.printStackTrace();
                result(name, false, false, cause.toString());
            }
        } catch (Exception late) {
            StringBuilder where = new StringBuilder();
            Thread.getAllStackTraces().forEach((thread, stack) -> {
                if (thread.getName().startsWith("pool")) {
                    for (StackTraceElement element : stack) {
                        if (element.getClassName().startsWith("heliograph")) {
                            where.append(element).append("; ");
                        }
                    }
                }
            });
            result(name, false, false, "not done in " + SCENARIO_SECONDS_MAX + " s: " + where);
        } finally {
            alone.shutdownNow();
            System.err.printf("%s took %.1f s%n", name, (System.nanoTime() - begun) / 1e9);
        }
    }

    private static void result(String name, boolean ok, boolean refused, String detail) {
        line("{\"scenario\": " + quoted(name) + ", \"ok\": " + ok + ", \"refused\": " + refused
                + ", \"detail\": " + quoted(detail) + "}");
    }

    /** Asks the test to do something with the cluster, such as killing a broker, and waits until it is done. */
    static String ask(String what, String... fieldsAndValues) throws Exception {
        StringBuilder question = new StringBuilder("{\"ask\": " + quoted(what));
        for (int n = 0; n < fieldsAndValues.length; n += 2) {
            question.append(", ").append(quoted(fieldsAndValues[n])).append(": ").append(quoted(fieldsAndValues[n + 1]));
        }
        synchronized (INPUT) {
            line(question.append("}").toString());
            String answer = INPUT.readLine();
            check(answer != null && answer.contains("\"ok\": true"), what + ": " + answer);
            return answer;
        }
    }

    /** Asks, and returns the answer as text. */
    static String answer(String what, String... fieldsAndValues) throws Exception {
        String found = ask(what, fieldsAndValues);
        Matcher value = Pattern.compile("\"answer\": \"?([^\"}]*)").matcher(found);
        check(value.find(), what + ": " + found);
        return value.group(1);
    }

    private static void line(String text) {
        synchronized (OUTPUT) {
            System.out.println(text);
            System.out.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(Object expected, Object found, String what) {
        check(expected.equals(found), what + ": expected " + expected + ", found " + found);
    }

    /** Returns a topic of public/default that nothing else uses. */
    static String topic(String name) {
        return "persistent://public/default/java-" + name + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    /** Receives a message; that there is none in time is an error. */
    static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_SECONDS, TimeUnit.SECONDS);
        check(message != null, "no message in " + WAIT_SECONDS + " s on " + consumer.getTopic());
        return message;
    }

    /** Receives and acknowledges so many messages and returns their payloads as text. */
    static List<String> texts(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            Message<byte[]> message = next(consumer);
            found.add(new String(message.getData(), StandardCharsets.UTF_8));
            consumer.acknowledge(message);
        }
        return found;
    }

    static <T> void none(Consumer<T> consumer, int milliseconds) throws Exception {
        Message<T> message = consumer.receive(milliseconds, TimeUnit.MILLISECONDS);
        check(message == null, "a message that nobody expects: " + (message == null ? "" : message.getMessageId()));
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Returns "m0" to "m(count - 1)". */
    static List<String> numbered(int count) {
        List<String> found = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            found.add("m" + n);
        }
        return found;
    }
}

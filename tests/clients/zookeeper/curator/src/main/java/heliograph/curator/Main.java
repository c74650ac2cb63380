package heliograph.curator;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Runs scenarios with Curator, some at a time: the arguments are a connect string and the scenarios' names. */
public final class Main {
    interface Scenario {
        void run(World world) throws Exception;
    }

    private static final int AT_ONCE = 3; // most of them wait most of the time
    private static final BufferedReader INPUT =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Main() {}

    public static void main(String[] arguments) throws InterruptedException {
        String connect = arguments[0];
        Map<String, Scenario> scenarios = new TreeMap<>();
        Locks.addTo(scenarios);
        Leaders.addTo(scenarios);
        Queues.addTo(scenarios);
        Nodes.addTo(scenarios);
        Caches.addTo(scenarios);
        Framework.addTo(scenarios);
        TwoEndpoints.addTo(scenarios);
        scenarios.keySet().retainAll(Arrays.asList(arguments).subList(1, arguments.length));
        ExecutorService threads = Executors.newFixedThreadPool(AT_ONCE);
        scenarios.forEach((name, scenario) -> threads.submit(() -> run(connect, name, scenario)));
        threads.shutdown();
        threads.awaitTermination(1, TimeUnit.DAYS); // the test ends the program when its time is over
        System.exit(0); // whatever threads the recipes leave behind
    }

    /** Ask the test to do something, and wait until it is done. */
    static void ask(String what) throws IOException {
        say("{\"ask\": \"" + what + "\"}");
        String answer = INPUT.readLine();
        World.check(answer != null && answer.contains("\"ok\": true"), what + " is answered: " + answer);
    }

    private static void run(String connect, String name, Scenario scenario) {
        long begin = System.nanoTime();
        String error = errorOf(connect, name, scenario);
        long spentMs = (System.nanoTime() - begin) / 1_000_000;
        say("{\"scenario\": \"" + name + "\", \"ok\": " + error.isEmpty() + ", \"detail\": \""
                + quoted(error.isEmpty() ? spentMs + " ms" : error) + "\"}");
    }

    private static String errorOf(String connect, String name, Scenario scenario) {
        try (World world = new World(connect, name)) {
            scenario.run(world);
            return "";
        } catch (Exception | AssertionError error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace, true));
            return trace.toString();
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder();
        for (char one : text.toCharArray()) {
            if (one < ' ' || one > '~' || one == '"' || one == '\\') {
                quoted.append(String.format("\\u%04x", (int) one));
            } else {
                quoted.append(one);
            }
        }
        return quoted.toString();
    }
}

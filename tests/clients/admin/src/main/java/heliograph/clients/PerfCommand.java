package heliograph.clients;

import java.util.Arrays;
import org.apache.pulsar.testclient.CmdBase;
import org.apache.pulsar.testclient.PerformanceConsumer;
import org.apache.pulsar.testclient.PerformanceProducer;
import org.apache.pulsar.testclient.PerformanceReader;

/**
 * One command of pulsar-perf. The tool's own entry point loads all its commands, and with them the broker's libraries,
 * of which one is not on Maven Central.
 */
final class PerfCommand {
    private PerfCommand() {}

    public static void main(String[] arguments) {
        CmdBase command;
        switch (arguments[0]) {
            case "produce":
                command = new PerformanceProducer();
                break;
            case "consume":
                command = new PerformanceConsumer();
                break;
            default:
                command = new PerformanceReader();
        }
        boolean ok = command.run(Arrays.copyOfRange(arguments, 1, arguments.length));
        System.exit(ok ? 0 : 1);
    }
}

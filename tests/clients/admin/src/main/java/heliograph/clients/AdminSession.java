package heliograph.clients;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * pulsar-admin in one JVM for many commands: reads the words of each command as a JSON array from a line of its input,
 * and answers a line with whether it succeeded and what it wrote.
 */
final class AdminSession extends PulsarAdminTool {
    private AdminSession(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setOut(new PrintStream(written, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", arguments[0]);
        properties.setProperty("brokerServiceUrl", arguments[1]);
        ObjectMapper json = new ObjectMapper();
        AdminSession tool = new AdminSession(properties);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            written.reset();
            errors.reset();
            boolean ok = tool.run(json.readValue(line, String[].class));
            System.out.flush();
            System.err.flush();
            answers.println(json.writeValueAsString(Map.of(
                    "ok", ok,
                    "out", written.toString(StandardCharsets.UTF_8),
                    "err", errors.toString(StandardCharsets.UTF_8))));
            answers.flush();
        }
        System.exit(0);
    }
}

package heliograph.clients;

import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.auth.AuthenticationTls;
import org.apache.pulsar.common.policies.data.AuthAction;

/** Tokens, rights and TLS. Properties name the addresses for TLS and the folder of the files. */
final class Security extends Scenarios {
    private static final String NAMESPACE = "public/default";
    private static final int RENEWALS = 2;
    /** A client that took a refusal for a lost connection would ask again until its operations time out. */
    private static final int OPERATION_SECONDS = 30;

    private final String urlTls = System.getProperty("tls");
    private final String otherHostTls = System.getProperty("otherHostTls");
    private final String folder = System.getProperty("folder");

    private interface Attempt {
        void run() throws Exception;
    }

    private Security(String serviceUrl, String webUrl) throws Exception {
        super(serviceUrl, webUrl);
        scenario("token", this::token);
        scenario("token_refused", this::tokenRefused);
        scenario("token_renewed", this::tokenRenewed);
        scenario("rights", this::rights);
        scenario("tls", this::tls);
        scenario("tls_role", this::tlsRole);
        scenario("identity", this::identity);
    }

    public static void main(String[] arguments) throws Exception {
        new Security(arguments[0], arguments[1]).runAll(arguments, 1);
    }

    private static PulsarClient client(String url, Authentication shown) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(url)
                .operationTimeout(OPERATION_SECONDS, TimeUnit.SECONDS);
        return (shown == null ? builder : builder.authentication(shown)).build();
    }

    private static Authentication good(String role) throws Exception {
        return AuthenticationFactory.token(answer("token", "role", role));
    }

    private PulsarAdmin admin(Authentication shown) throws Exception {
        return PulsarAdmin.builder().serviceHttpUrl(webUrl).authentication(shown).build();
    }

    private static void roundTrip(PulsarClient with, String name) throws Exception {
        String topic = topic(name);
        try (Consumer<byte[]> consumer = with.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = with.newProducer().topic(topic).create()) {
            producer.send(bytes("hello"));
            same(List.of("hello"), texts(consumer, 1), "through " + name);
        }
    }

    private static void fails(Class<? extends Exception> kind, Attempt attempt, String what) throws Exception {
        long begun = System.nanoTime();
        try {
            attempt.run();
        } catch (Exception refused) {
            check(kind.isInstance(refused), what + ": " + refused);
            double seconds = (System.nanoTime() - begun) / 1e9;
            check(seconds < OPERATION_SECONDS, what + " was refused after " + seconds + " s");
            return;
        }
        throw new AssertionError(what + " was not refused");
    }

    private String token() throws Exception {
        try (PulsarClient alice = client(serviceUrl, good("alice"))) {
            roundTrip(alice, "token");
        }
        return null;
    }

    private String tokenRefused() throws Exception {
        String[] shown = {
            answer("token", "role", "alice", "kind", "another key"), answer("token", "role", "alice", "kind", "expired"),
            "", null
        };
        for (String one : shown) {
            try (PulsarClient stranger = client(serviceUrl, one == null ? null : AuthenticationFactory.token(one))) {
                String topic = topic("refused");
                fails(PulsarClientException.AuthenticationException.class,
                        () -> stranger.newProducer().topic(topic).create(), "a producer with token " + one);
                fails(PulsarClientException.AuthenticationException.class,
                        () -> stranger.newConsumer().topic(topic).subscriptionName("s").subscribe(),
                        "a consumer with token " + one);
            }
        }
        return null;
    }

    /** The broker asks for a new token before the old one ends, and the one connection stays. */
    private String tokenRenewed() throws Exception {
        AtomicInteger supplied = new AtomicInteger();
        Authentication renewed = AuthenticationFactory.token(() -> {
            supplied.incrementAndGet();
            try {
                return answer("token", "role", "alice", "seconds", "3");
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        try (PulsarClient alice = client(serviceUrl, renewed);
                Producer<byte[]> producer = alice.newProducer().topic(topic("renewed")).create()) {
            producer.send(bytes("first"));
            String before = answer("connections");
            int at = supplied.get();
            while (supplied.get() < at + RENEWALS) {
                producer.send(bytes("next"));
                Thread.sleep(50);
            }
            same(before, answer("connections"), "connections");
        }
        return null;
    }

    private String rights() throws Exception {
        String topic = topic("rights");
        try (PulsarClient publisher = client(serviceUrl, good("publisher"));
                Producer<byte[]> producer = publisher.newProducer().topic(topic).create()) {
            producer.send(bytes("hello"));
            fails(PulsarClientException.AuthorizationException.class,
                    () -> publisher.newConsumer().topic(topic).subscriptionName("s").subscribe(), "a consumer");
        }
        try (PulsarAdmin superuser = admin(good("admin"));
                PulsarClient guest = client(serviceUrl, good("guest"))) {
            fails(PulsarClientException.AuthorizationException.class,
                    () -> guest.newProducer().topic(topic).create(), "a producer before the grant");
            superuser.namespaces().grantPermissionOnNamespace(NAMESPACE, "guest", Set.of(AuthAction.produce));
            eventually(() -> guest.newProducer().topic(topic).create().close());
            superuser.namespaces().revokePermissionsOnNamespace(NAMESPACE, "guest");
            eventually(() -> fails(PulsarClientException.AuthorizationException.class,
                    () -> guest.newProducer().topic(topic).create().close(), "a producer after the revocation"));
        }
        return null;
    }

    /** Brokers see a change of rights a moment after it was answered. */
    private static void eventually(Attempt attempt) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
        while (true) {
            try {
                attempt.run();
                return;
            } catch (Exception | AssertionError early) {
                if (System.nanoTime() > end) {
                    throw early;
                }
                Thread.sleep(50);
            }
        }
    }

    private ClientBuilder overTls(String url, String authority, Authentication shown) {
        return PulsarClient.builder().serviceUrl(url).tlsTrustCertsFilePath(folder + "/" + authority)
                .enableTlsHostnameVerification(true).operationTimeout(2, TimeUnit.SECONDS).authentication(shown);
    }

    private String tls() throws Exception {
        Authentication alice = good("alice");
        try (PulsarClient right = overTls(urlTls, "ca.pem", alice).operationTimeout(30, TimeUnit.SECONDS).build()) {
            roundTrip(right, "tls");
        }
        String topic = topic("tls");
        String deceived = answer("deceived");
        for (ClientBuilder wrong : List.of(
                overTls(urlTls, "other-ca.pem", alice), overTls(otherHostTls, "ca.pem", alice))) {
            try (PulsarClient refused = wrong.build()) {
                fails(PulsarClientException.class, () -> refused.newProducer().topic(topic).create(), "a stranger");
            }
        }
        same(deceived, answer("deceived"), "handshakes with another host");
        return null;
    }

    private String tlsRole() throws Exception {
        Authentication certificate = new AuthenticationTls(folder + "/alice.pem", folder + "/alice.key");
        try (PulsarClient alice = overTls(urlTls, "ca.pem", certificate).operationTimeout(30, TimeUnit.SECONDS).build()) {
            roundTrip(alice, "tls-role");
            fails(PulsarClientException.AuthorizationException.class,
                    () -> alice.newProducer().topic("persistent://public/other/t").create(), "another namespace");
        }
        return null;
    }

    /** The administration library: 401 without a good token, 403 without the right, and the operation with it. */
    private String identity() throws Exception {
        try (PulsarAdmin stranger = PulsarAdmin.builder().serviceHttpUrl(webUrl).build();
                PulsarAdmin wrong = admin(AuthenticationFactory.token(
                        answer("token", "role", "admin", "kind", "another key")));
                PulsarAdmin alice = admin(good("alice"));
                PulsarAdmin superuser = admin(good("admin"))) {
            for (PulsarAdmin one : List.of(stranger, wrong)) {
                fails(PulsarAdminException.NotAuthorizedException.class, () -> one.tenants().getTenants(), "a stranger");
                status(401, () -> one.tenants().getTenants());
            }
            status(403, () -> alice.namespaces().createNamespace("public/by-alice"));
            superuser.namespaces().createNamespace("public/by-admin");
            superuser.namespaces().deleteNamespace("public/by-admin");
        }
        return null;
    }

    private static void status(int expected, Attempt attempt) throws Exception {
        try {
            attempt.run();
        } catch (PulsarAdminException refused) {
            same(expected, refused.getStatusCode(), "status");
            return;
        }
        throw new AssertionError("not refused with " + expected);
    }
}

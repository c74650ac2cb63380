package heliograph.curator;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/** The clients and threads of one scenario. Every client works below the namespace of the scenario. */
final class World implements AutoCloseable {
    static final int DEADLINE_SECONDS = 60;
    static final int SESSION_MS = 40_000; // survives whatever a busy machine does to it

    final String namespace;
    private final String connect;
    private final List<CuratorFramework> clients = new ArrayList<>();
    private final ExecutorService threads = Executors.newCachedThreadPool(
            work -> {
                Thread thread = new Thread(work);
                thread.setDaemon(true);
                return thread;
            });

    World(String connect, String namespace) {
        this.connect = connect;
        this.namespace = namespace;
    }

    /** Return a new client that has a session. */
    CuratorFramework client() throws Exception {
        return start(builder());
    }

    /** Return what all clients have in common. */
    CuratorFrameworkFactory.Builder builder() {
        return CuratorFrameworkFactory.builder()
                .connectString(connect)
                .namespace(namespace)
                .sessionTimeoutMs(SESSION_MS)
                .connectionTimeoutMs(SESSION_MS)
                .retryPolicy(new ExponentialBackoffRetry(50, 8, 1_000));
    }

    CuratorFramework start(CuratorFrameworkFactory.Builder builder) throws Exception {
        CuratorFramework client = builder.build();
        clients.add(client);
        client.start();
        check(client.blockUntilConnected(DEADLINE_SECONDS, TimeUnit.SECONDS), "the client is connected");
        return client;
    }

    /** End the session of a client from outside, as the server does at its time-out. */
    void expire(CuratorFramework client) throws Exception {
        ZooKeeper own = client.getZookeeperClient().getZooKeeper();
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper twin = new ZooKeeper(connect, SESSION_MS, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }, own.getSessionId(), own.getSessionPasswd());
        check(connected.await(DEADLINE_SECONDS, TimeUnit.SECONDS), "the twin of the session is connected");
        twin.close();
    }

    <T> Future<T> start(Callable<T> work) {
        return threads.submit(work);
    }

    static <T> T finish(Future<T> work) throws Exception {
        try {
            return work.get(DEADLINE_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception inner ? inner : error;
        }
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("does not hold: " + what);
        }
    }

    static void same(Object expected, Object found) {
        if (expected == null ? found != null : !expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_SECONDS);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("never came to hold: " + what);
            }
            Thread.sleep(10);
        }
    }

    @Override
    public void close() {
        threads.shutdownNow();
        for (CuratorFramework client : clients) {
            client.close();
        }
    }
}

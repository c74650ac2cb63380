package heliograph.curator;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.data.Stat;

/** A client whose endpoints die one after the other. The test kills them when it is asked to. */
final class TwoEndpoints {
    private final World world;
    private final List<ConnectionState> states = Collections.synchronizedList(new ArrayList<>());
    private CuratorFramework client;
    private LeaderLatch latch;
    private CuratorCache cache;
    private long session;

    private TwoEndpoints(World world) {
        this.world = world;
    }

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("endpoint_death", world -> new TwoEndpoints(world).run());
    }

    private void run() throws Exception {
        client = world.client();
        client.getConnectionStateListenable().addListener((own, state) -> states.add(state));
        session = client.getZookeeperClient().getZooKeeper().getSessionId();
        client.create().withMode(CreateMode.EPHEMERAL).forPath("/ephemeral", "v".getBytes());
        new InterProcessMutex(client, "/mutex").acquire();
        latch = new LeaderLatch(client, "/latch");
        latch.start();
        World.check(latch.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the only member leads");
        client.create().forPath("/tree");
        cache = CuratorCache.build(client, "/tree");
        cache.start();
        World.eventually("the cache is filled", () -> cache.get("/tree").isPresent());
        for (String endpoint : new String[] {"first", "second"}) {
            Main.ask("kill the " + endpoint);
            String other = endpoint.equals("first") ? "second" : "first";
            checkStayed(other);
            Main.ask("start the " + endpoint);
        }
        cache.close();
        latch.close();
    }

    /** Check that the session and all that hangs on it have survived. */
    private void checkStayed(String serving) throws Exception {
        Stat stat = client.checkExists().forPath("/ephemeral"); // Curator retries it until there is a connection
        World.check(stat != null, "the ephemeral node is there");
        World.same(session, stat.getEphemeralOwner());
        World.same(session, client.getZookeeperClient().getZooKeeper().getSessionId());
        World.check(!states.contains(ConnectionState.LOST), "the session is not lost: " + states);
        CuratorFramework other = world.client();
        InterProcessMutex contender = new InterProcessMutex(other, "/mutex");
        World.check(!contender.acquire(300, TimeUnit.MILLISECONDS), "the mutex is still held");
        World.eventually("the leader leads", () -> latch.hasLeadership());
        other.create().forPath("/tree/served-by-" + serving, "v".getBytes());
        World.eventually("the watches are restored", () -> cache.get("/tree/served-by-" + serving).isPresent());
        String next = client.create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/n-", "v".getBytes());
        World.same(session, other.checkExists().forPath(next).getEphemeralOwner());
    }
}

package heliograph.curator;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedValue;
import org.apache.curator.retry.RetryNTimes;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.data.Stat;

/** Nodes that are kept, nodes that go by themselves, and values that are shared. */
final class Nodes {
    private Nodes() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("persistent_node", Nodes::persistentNode);
        scenarios.put("persistent_ttl_node", Nodes::persistentTtlNode);
        scenarios.put("ttl_modes", Nodes::ttlModes);
        scenarios.put("containers_go", Nodes::containersGo);
        scenarios.put("atomic_long", Nodes::atomicLong);
        scenarios.put("shared_values", Nodes::sharedValues);
        scenarios.put("service_discovery", Nodes::serviceDiscovery);
    }

    private static void persistentNode(World world) throws Exception {
        CuratorFramework client = world.client();
        CuratorFramework other = world.client();
        try (PersistentNode node = new PersistentNode(client, CreateMode.EPHEMERAL, false, "/a/node", "v".getBytes())) {
            node.start();
            World.check(node.waitForInitialCreate(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the node is made");
            long first = client.getZookeeperClient().getZooKeeper().getSessionId();
            World.same(first, other.checkExists().forPath("/a/node").getEphemeralOwner());
            other.delete().forPath("/a/node");
            World.eventually("a deleted node is made again", () -> other.checkExists().forPath("/a/node") != null);
            world.expire(client);
            World.eventually("the next session has the node", () -> {
                Stat stat = other.checkExists().forPath("/a/node");
                return stat != null && stat.getEphemeralOwner() != first;
            });
        }
        World.eventually("a closed node is deleted", () -> other.checkExists().forPath("/a/node") == null);
    }

    private static void persistentTtlNode(World world) throws Exception {
        CuratorFramework other = world.client();
        PersistentTtlNode node = new PersistentTtlNode(world.client(), "/ttl", 4_000, "v".getBytes());
        node.start();
        World.check(node.waitForInitialCreate(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the node is made");
        World.eventually("the node is touched", () -> other.checkExists().forPath("/ttl/touch") != null);
        Thread.sleep(6_000);
        Stat stat = other.checkExists().forPath("/ttl");
        World.check(stat != null, "a node that is touched stays beyond its time");
        node.close();
        World.eventually("it goes when nobody touches it", () -> other.checkExists().forPath("/ttl") == null);
    }

    private static void ttlModes(World world) throws Exception {
        CuratorFramework client = world.client();
        client.create().withTtl(1_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath("/one", "v".getBytes());
        String second = client.create()
                .withTtl(1_000)
                .withMode(CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL)
                .forPath("/two-", "v".getBytes());
        World.same("/two-0000000001", second);
        Stat stat = client.checkExists().forPath("/one");
        World.same(0L, stat.getEphemeralOwner()); // the time to live is no business of clients
        client.create().withTtl(1_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath("/parent", null);
        client.create().forPath("/parent/child", null);
        World.eventually("both go", () -> client.checkExists().forPath("/one") == null
                && client.checkExists().forPath(second) == null);
        World.check(client.checkExists().forPath("/parent") != null, "a node with a child stays");
        client.delete().forPath("/parent/child");
        World.eventually("it goes after its child", () -> client.checkExists().forPath("/parent") == null);
    }

    private static void containersGo(World world) throws Exception {
        CuratorFramework client = world.client();
        client.create().withMode(CreateMode.CONTAINER).forPath("/empty");
        client.create().creatingParentContainersIfNeeded().forPath("/a/b/leaf");
        Stat stat = client.checkExists().forPath("/a/b");
        World.same(0L, stat.getEphemeralOwner());
        client.delete().forPath("/a/b/leaf");
        World.eventually("parents go after their last child", () -> client.checkExists().forPath("/a") == null);
        World.check(client.checkExists().forPath("/empty") != null, "a container that never had a child stays");
    }

    private static void atomicLong(World world) throws Exception {
        List<Future<Void>> work = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            PromotedToLock lock = PromotedToLock.builder()
                    .lockPath("/lock")
                    .timeout(World.DEADLINE_SECONDS, TimeUnit.SECONDS)
                    .retryPolicy(new RetryNTimes(1, 10))
                    .build();
            DistributedAtomicLong count =
                    new DistributedAtomicLong(world.client(), "/count", new RetryNTimes(2, 5), lock);
            work.add(world.start(() -> {
                for (int changes = 0; changes < 10; ) {
                    changes += count.increment().succeeded() ? 1 : 0; // others may have been faster
                }
                return null;
            }));
        }
        for (Future<Void> one : work) {
            World.finish(one);
        }
        DistributedAtomicLong count = new DistributedAtomicLong(world.client(), "/count", new RetryNTimes(5, 10));
        World.same(30L, count.get().postValue());
        AtomicValue<Long> wrong = count.compareAndSet(29L, 1L);
        World.check(!wrong.succeeded(), "the value differs");
        World.check(count.compareAndSet(30L, 1L).succeeded(), "the value agrees");
        World.same(5L, count.add(4L).postValue());
        World.check(!count.initialize(9L), "there is a value");
    }

    private static void sharedValues(World world) throws Exception {
        try (SharedValue one = new SharedValue(world.client(), "/value", "a".getBytes());
                SharedValue other = new SharedValue(world.client(), "/value", "a".getBytes());
                SharedCount count = new SharedCount(world.client(), "/count", 7)) {
            one.start();
            other.start();
            count.start();
            World.same(7, count.getCount());
            one.setValue("b".getBytes());
            World.eventually("a change is seen", () -> "b".equals(new String(other.getValue())));
            World.check(other.trySetValue(other.getVersionedValue(), "c".getBytes()), "the version agrees");
            World.eventually("a change is seen", () -> "c".equals(new String(one.getValue())));
        }
    }

    private static void serviceDiscovery(World world) throws Exception {
        ServiceInstance<Void> instance =
                ServiceInstance.<Void>builder().name("web").address("10.0.0.1").port(80).build();
        CuratorFramework client = world.client();
        try (ServiceDiscovery<Void> offering = ServiceDiscoveryBuilder.builder(Void.class)
                        .client(client).basePath("/services").thisInstance(instance).build();
                ServiceDiscovery<Void> looking = ServiceDiscoveryBuilder.builder(Void.class)
                        .client(world.client()).basePath("/services").build()) {
            offering.start();
            looking.start();
            World.eventually("the service is found", () -> looking.queryForInstances("web").size() == 1);
            World.same(80, looking.queryForInstances("web").iterator().next().getPort());
            world.expire(client);
            World.eventually("it is found again", () -> looking.queryForInstances("web").size() == 1);
            offering.unregisterService(instance);
            World.eventually("it is gone", () -> looking.queryForInstances("web").isEmpty());
        }
    }
}

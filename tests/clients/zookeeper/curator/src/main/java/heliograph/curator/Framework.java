package heliograph.curator;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.ACLProvider;
import org.apache.curator.framework.api.CuratorEvent;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.api.transaction.OperationType;
import org.apache.curator.framework.schema.Schema;
import org.apache.curator.framework.schema.SchemaSet;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Stat;

/** What Curator's framework does below the recipes. */
final class Framework {
    private Framework() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("transactions", Framework::transactions);
        scenarios.put("null_data", Framework::nullData);
        scenarios.put("protected_sequence", Framework::protectedSequence);
        scenarios.put("background", Framework::background);
        scenarios.put("acl", Framework::acl);
        scenarios.put("create_or_set", Framework::createOrSet);
    }

    private static void transactions(World world) throws Exception {
        CuratorFramework client = world.client();
        List<CuratorTransactionResult> results = client.transaction().forOperations(
                client.transactionOp().create().forPath("/a", "1".getBytes()),
                client.transactionOp().create().withMode(CreateMode.CONTAINER).forPath("/container", new byte[0]),
                client.transactionOp().create().withTtl(60_000).withMode(CreateMode.PERSISTENT_WITH_TTL)
                        .forPath("/ttl", "t".getBytes()),
                client.transactionOp().create().withMode(CreateMode.EPHEMERAL_SEQUENTIAL)
                        .forPath("/a-", "2".getBytes()),
                client.transactionOp().setData().withVersion(0).forPath("/a", "3".getBytes()),
                client.transactionOp().check().withVersion(1).forPath("/a"));
        World.same(6, results.size());
        World.same("/a-0000000003", results.get(3).getResultPath());
        World.same(OperationType.SET_DATA, results.get(4).getType());
        World.same(1, results.get(4).getResultStat().getVersion());
        CuratorOp change = client.transactionOp().setData().forPath("/a", "4".getBytes());
        CuratorOp wrong = client.transactionOp().delete().withVersion(7).forPath("/a");
        try {
            client.transaction().forOperations(change, wrong);
            throw new AssertionError("the second operation fails");
        } catch (KeeperException.BadVersionException error) {
            World.same(2, error.getResults().size());
        }
        World.same("3", new String(client.getData().forPath("/a")));
    }

    private static void nullData(World world) throws Exception {
        CuratorFramework client = world.client();
        client.create().forPath("/parent");
        ZooKeeper bare = client.getZookeeperClient().getZooKeeper();
        String below = "/" + world.namespace + "/parent";
        bare.create(below + "/null", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        bare.create(below + "/empty", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        World.same(null, bare.getData(below + "/null", false, null));
        World.same(0, bare.getData(below + "/empty", false, null).length);
        bare.setData(below + "/empty", null, -1);
        bare.setData(below + "/null", new byte[0], -1);
        World.same(0, bare.getData(below + "/null", false, null).length);
        World.same(null, world.client().getZookeeperClient().getZooKeeper().getData(below + "/empty", false, null));
        Stat stat = bare.exists(below + "/empty", false);
        World.same(0, stat.getDataLength());
    }

    private static void protectedSequence(World world) throws Exception {
        CuratorFramework client = world.client();
        String first = client.create().creatingParentContainersIfNeeded().withProtection()
                .withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/a/n-");
        String second = client.create().creatingParentContainersIfNeeded().withProtection()
                .withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/a/n-");
        World.check(first.startsWith("/a/_c_") && first.endsWith("-n-0000000000"), first);
        World.check(second.endsWith("-n-0000000001"), second);
        client.delete().guaranteed().forPath(first);
        World.same(1, client.getChildren().forPath("/a").size());
    }

    private static void background(World world) throws Exception {
        CuratorFramework client = world.client();
        CountDownLatch done = new CountDownLatch(200);
        AtomicReference<CuratorEvent> failed = new AtomicReference<>();
        for (int number = 0; number < 200; number++) {
            client.create().creatingParentsIfNeeded().inBackground((own, event) -> {
                if (event.getResultCode() != KeeperException.Code.OK.intValue()) {
                    failed.set(event);
                }
                done.countDown();
            }).forPath("/many/" + number, ("v" + number).getBytes());
        }
        World.check(done.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "all are answered");
        World.same(null, failed.get());
        client.sync().forPath("/many");
        World.same(200, client.getChildren().forPath("/many").size());
        World.same("v199", new String(client.getData().forPath("/many/199")));
    }

    private static void acl(World world) throws Exception {
        ACLProvider creatorOnly = new ACLProvider() {
            @Override
            public List<ACL> getDefaultAcl() {
                return ZooDefs.Ids.CREATOR_ALL_ACL;
            }

            @Override
            public List<ACL> getAclForPath(String path) {
                return path.startsWith("/" + world.namespace + "/") ? getDefaultAcl() : ZooDefs.Ids.OPEN_ACL_UNSAFE;
            }
        };
        CuratorFramework owner = world.start(
                world.builder().authorization("digest", "user:secret".getBytes()).aclProvider(creatorOnly));
        CuratorFramework stranger = world.client();
        owner.create().creatingParentContainersIfNeeded().forPath("/mine/node", "v".getBytes());
        World.same("v", new String(owner.getData().forPath("/mine/node")));
        World.same("digest", owner.getACL().forPath("/mine/node").get(0).getId().getScheme());
        try {
            stranger.getData().forPath("/mine/node");
            throw new AssertionError("a stranger reads the node");
        } catch (KeeperException.NoAuthException expected) {
            World.check(!stranger.getChildren().forPath("/").isEmpty(), "the parent is open");
        }
        owner.setACL().withACL(ZooDefs.Ids.READ_ACL_UNSAFE).forPath("/mine/node");
        World.same("v", new String(stranger.getData().forPath("/mine/node")));
    }

    private static void createOrSet(World world) throws Exception {
        CuratorFramework client = world.client();
        client.create().orSetData().creatingParentsIfNeeded().forPath("/a/b", "1".getBytes());
        client.create().orSetData().creatingParentsIfNeeded().forPath("/a/b", "2".getBytes());
        World.same("2", new String(client.getData().forPath("/a/b")));
        Stat stat = new Stat();
        client.create().storingStatIn(stat).forPath("/a/c", "3".getBytes());
        World.same(1, stat.getDataLength());
        client.delete().idempotent().forPath("/a/c");
        client.delete().idempotent().forPath("/a/c");
        client.delete().quietly().forPath("/a/none");
        World.check(client.checkExists().forPath("/a/c") == null, "it is gone");
        Schema schema = Schema.builder("/schema").build();
        World.same(true, new SchemaSet(List.of(schema), true).getSchemas().contains(schema));
    }
}

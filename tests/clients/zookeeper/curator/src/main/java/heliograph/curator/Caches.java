package heliograph.curator;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCacheEvent;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.WatcherType;

/** Caches and watches. */
@SuppressWarnings("deprecation") // the older caches are in wide use
final class Caches {
    private Caches() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("path_children_cache", Caches::pathChildrenCache);
        scenarios.put("node_cache", Caches::nodeCache);
        scenarios.put("tree_cache", Caches::treeCache);
        scenarios.put("curator_cache", Caches::curatorCache);
        scenarios.put("curator_cache_of_expired_session", Caches::curatorCacheOfExpiredSession);
        scenarios.put("persistent_watcher", Caches::persistentWatcher);
        scenarios.put("remove_watches", Caches::removeWatches);
    }

    private static void pathChildrenCache(World world) throws Exception {
        CuratorFramework other = world.client();
        other.create().creatingParentsIfNeeded().forPath("/path/old", "a".getBytes());
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        try (PathChildrenCache cache = new PathChildrenCache(world.client(), "/path", true)) {
            cache.getListenable().addListener((client, event) -> {
                boolean named = event.getData() != null;
                events.add(event.getType() + (named ? " " + event.getData().getPath() : ""));
            });
            cache.start(PathChildrenCache.StartMode.POST_INITIALIZED_EVENT);
            String initialized = PathChildrenCacheEvent.Type.INITIALIZED.toString();
            World.eventually("the cache is filled", () -> events.contains(initialized));
            other.create().forPath("/path/new", "b".getBytes());
            World.eventually("the child is seen", () -> events.contains("CHILD_ADDED /path/new"));
            other.setData().forPath("/path/old", "c".getBytes());
            World.eventually("the change is seen", () -> events.contains("CHILD_UPDATED /path/old"));
            World.same("c", new String(cache.getCurrentData("/path/old").getData()));
            other.delete().forPath("/path/old");
            World.eventually("the deletion is seen", () -> events.contains("CHILD_REMOVED /path/old"));
            World.same(1, cache.getCurrentData().size());
        }
    }

    private static void nodeCache(World world) throws Exception {
        CuratorFramework other = world.client();
        try (NodeCache cache = new NodeCache(world.client(), "/node")) {
            cache.start(true);
            World.same(null, cache.getCurrentData());
            other.create().forPath("/node", "a".getBytes());
            World.eventually("the node is seen", () -> cache.getCurrentData() != null);
            other.setData().forPath("/node", "b".getBytes());
            World.eventually("the change is seen", () -> "b".equals(new String(cache.getCurrentData().getData())));
            other.delete().forPath("/node");
            World.eventually("the deletion is seen", () -> cache.getCurrentData() == null);
        }
    }

    private static void treeCache(World world) throws Exception {
        CuratorFramework other = world.client();
        other.create().creatingParentsIfNeeded().forPath("/tree/a/b", "1".getBytes());
        try (TreeCache cache = new TreeCache(world.client(), "/tree")) {
            CountDownLatch initialized = new CountDownLatch(1);
            cache.getListenable().addListener((client, event) -> {
                if (event.getType() == org.apache.curator.framework.recipes.cache.TreeCacheEvent.Type.INITIALIZED) {
                    initialized.countDown();
                }
            });
            cache.start();
            World.check(initialized.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the cache is filled");
            World.same("1", new String(cache.getCurrentData("/tree/a/b").getData()));
            other.create().creatingParentsIfNeeded().forPath("/tree/c/d/e", "2".getBytes());
            World.eventually("a branch is seen", () -> cache.getCurrentData("/tree/c/d/e") != null);
            other.delete().deletingChildrenIfNeeded().forPath("/tree/a");
            World.eventually("it is gone", () -> cache.getCurrentData("/tree/a") == null);
        }
    }

    private static void curatorCache(World world) throws Exception {
        CuratorFramework other = world.client();
        other.create().creatingParentsIfNeeded().forPath("/tree/a", "1".getBytes());
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch initialized = new CountDownLatch(1);
        try (CuratorCache cache = CuratorCache.build(world.client(), "/tree")) {
            cache.listenable().addListener(CuratorCacheListener.builder()
                    .forInitialized(initialized::countDown)
                    .forCreates(data -> events.add("created " + data.getPath()))
                    .forChanges((before, after) ->
                            events.add("changed " + after.getPath() + " to " + new String(after.getData())))
                    .forDeletes(data -> events.add("deleted " + data.getPath()))
                    .build());
            cache.start();
            World.check(initialized.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the cache is filled");
            World.check(events.containsAll(List.of("created /tree", "created /tree/a")), "the nodes are there");
            events.clear();
            other.create().forPath("/tree/b", "2".getBytes());
            World.eventually("it is seen", () -> events.equals(List.of("created /tree/b")));
            other.create().forPath("/tree/b/c", "3".getBytes());
            World.eventually("it is seen", () -> events.contains("created /tree/b/c"));
            other.setData().forPath("/tree/b", "4".getBytes());
            World.eventually("it is seen", () -> events.contains("changed /tree/b to 4"));
            other.delete().forPath("/tree/b/c");
            World.eventually("it is seen", () -> events.contains("deleted /tree/b/c"));
            World.same(4, events.size());
            World.same("4", new String(cache.get("/tree/b").get().getData()));
        }
    }

    private static void curatorCacheOfExpiredSession(World world) throws Exception {
        CuratorFramework watching = world.client();
        CuratorFramework other = world.client();
        other.create().forPath("/tree");
        try (CuratorCache cache = CuratorCache.build(watching, "/tree")) {
            cache.start();
            World.eventually("the cache is filled", () -> cache.get("/tree").isPresent());
            world.expire(watching);
            other.create().forPath("/tree/a", "1".getBytes());
            World.eventually("the next session sees the change", () -> cache.get("/tree/a").isPresent());
            other.setData().forPath("/tree/a", "2".getBytes());
            World.eventually("its watch works", () -> "2".equals(new String(cache.get("/tree/a").get().getData())));
        }
    }

    private static void persistentWatcher(World world) throws Exception {
        CuratorFramework other = world.client();
        other.create().forPath("/a");
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch set = new CountDownLatch(1);
        try (PersistentWatcher watcher = new PersistentWatcher(world.client(), "/a", true)) {
            watcher.getListenable().addListener(event -> events.add(event.getType() + " " + event.getPath()));
            watcher.getResetListenable().addListener(set::countDown);
            watcher.start();
            World.check(set.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the watch is set");
            events.clear();
            other.create().forPath("/a/b");
            other.setData().forPath("/a/b", "v".getBytes());
            other.delete().forPath("/a/b");
            World.eventually("the events come", () -> events.size() >= 3);
            World.same(
                    List.of("NodeCreated /a/b", "NodeDataChanged /a/b", "NodeDeleted /a/b"), new ArrayList<>(events));
        }
    }

    private static void removeWatches(World world) throws Exception {
        // Curator does not find a watcher again below a namespace.
        CuratorFramework client = world.start(world.builder().namespace(null));
        CuratorFramework other = world.client();
        String path = "/" + world.namespace + "/a";
        other.create().forPath("/a");
        other.create().forPath("/barrier");
        for (AddWatchMode mode : AddWatchMode.values()) {
            List<WatchedEvent> events = Collections.synchronizedList(new ArrayList<>());
            Watcher watcher = events::add;
            WatcherType type =
                    mode == AddWatchMode.PERSISTENT ? WatcherType.Persistent : WatcherType.PersistentRecursive;
            client.watchers().add().withMode(mode).usingWatcher(watcher).forPath(path);
            other.setData().forPath("/a", mode.toString().getBytes());
            World.eventually("the watch works", () -> events.size() == 1);
            client.watchers().remove(watcher).ofType(type).forPath(path);
            World.eventually("the watcher is told of its end", () -> events.size() == 2);
            other.setData().forPath("/a", "unseen".getBytes());
            seen(world, client, other);
            World.same(2, events.size());
        }
        List<WatchedEvent> events = Collections.synchronizedList(new ArrayList<>());
        Watcher watcher = events::add;
        client.getData().usingWatcher(watcher).forPath(path);
        client.getChildren().usingWatcher(watcher).forPath(path);
        client.watchers().remove(watcher).ofType(WatcherType.Data).forPath(path);
        World.eventually("the watcher is told of its end", () -> events.size() == 1);
        World.same(Watcher.Event.EventType.DataWatchRemoved, events.get(0).getType());
        other.setData().forPath("/a", "unseen".getBytes());
        other.create().forPath("/a/child");
        World.eventually("the other watch remains", () -> events.size() == 2);
        World.same(Watcher.Event.EventType.NodeChildrenChanged, events.get(1).getType());
    }

    /** Return after the client has received every event of what the other client did before. */
    private static void seen(World world, CuratorFramework client, CuratorFramework other) throws Exception {
        CountDownLatch changed = new CountDownLatch(1);
        client.getData().usingWatcher((Watcher) event -> changed.countDown()).forPath("/" + world.namespace + "/barrier");
        other.setData().forPath("/barrier", "v".getBytes());
        World.check(changed.await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the last event comes");
    }
}

package heliograph.curator;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.nodes.GroupMember;

/** Leaders, barriers and groups. */
final class Leaders {
    private static final int MEMBERS = 3;

    private Leaders() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("leader_latch", Leaders::latch);
        scenarios.put("leader_selector", Leaders::selector);
        scenarios.put("barrier", Leaders::barrier);
        scenarios.put("double_barrier", Leaders::doubleBarrier);
        scenarios.put("group_member", Leaders::groupMember);
    }

    private static void latch(World world) throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        List<LeaderLatch> latches = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            clients.add(world.client());
            latches.add(new LeaderLatch(clients.get(number), "/latch", "member-" + number));
            latches.get(number).start();
        }
        World.eventually("there is a leader", () -> leaders(latches) == 1);
        World.eventually("all take part", () -> latches.get(0).getParticipants().size() == MEMBERS);
        int first = leader(latches);
        World.same("member-" + first, latches.get((first + 1) % MEMBERS).getLeader().getId());
        latches.get(first).close();
        World.eventually("another leads", () -> leaders(latches) == 1 && leader(latches) != first);
        int second = leader(latches);
        world.expire(clients.get(second));
        int third = MEMBERS - first - second;
        World.check(latches.get(third).await(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the last one leads");
        World.eventually("the expired one takes part again", () -> latches.get(third).getParticipants().size() == 2);
        World.eventually("there is one leader", () -> leaders(latches) == 1);
        for (LeaderLatch one : latches) {
            if (one.getState() == LeaderLatch.State.STARTED) {
                one.close();
            }
        }
    }

    private static long leaders(List<LeaderLatch> latches) {
        return latches.stream().filter(LeaderLatch::hasLeadership).count();
    }

    private static int leader(List<LeaderLatch> latches) {
        for (int number = 0; number < latches.size(); number++) {
            if (latches.get(number).hasLeadership()) {
                return number;
            }
        }
        return -1;
    }

    private static void selector(World world) throws Exception {
        Set<String> led = ConcurrentHashMap.newKeySet();
        AtomicInteger leading = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        List<LeaderSelector> selectors = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            String name = "member-" + number;
            LeaderSelector one = new LeaderSelector(world.client(), "/leader", new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) throws Exception {
                    most.accumulateAndGet(leading.incrementAndGet(), Math::max);
                    led.add(name);
                    Thread.sleep(20);
                    leading.decrementAndGet();
                }
            });
            one.setId(name);
            one.autoRequeue();
            one.start();
            selectors.add(one);
        }
        World.eventually("each leads in its turn", () -> led.size() == MEMBERS);
        World.same(1, most.get());
        World.eventually("all are queued", () -> selectors.get(0).getParticipants().size() == MEMBERS);
        for (LeaderSelector one : selectors) {
            one.close();
        }
    }

    private static void barrier(World world) throws Exception {
        CuratorFramework client = world.client();
        DistributedBarrier barrier = new DistributedBarrier(client, "/barrier");
        barrier.setBarrier();
        List<Future<Boolean>> waiting = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            DistributedBarrier other = new DistributedBarrier(world.client(), "/barrier");
            waiting.add(world.start(() -> other.waitOnBarrier(World.DEADLINE_SECONDS, TimeUnit.SECONDS)));
        }
        Thread.sleep(200);
        World.check(waiting.stream().noneMatch(Future::isDone), "all wait at the barrier");
        barrier.removeBarrier();
        for (Future<Boolean> one : waiting) {
            World.check(World.finish(one), "the barrier is gone");
        }
    }

    private static void doubleBarrier(World world) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        List<Future<Void>> work = new ArrayList<>();
        for (int number = 0; number < MEMBERS; number++) {
            DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(world.client(), "/barrier", MEMBERS);
            int delayMs = number * 50;
            work.add(world.start(() -> {
                Thread.sleep(delayMs);
                inside.incrementAndGet();
                World.check(barrier.enter(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "all enter");
                World.same(MEMBERS, inside.get());
                Thread.sleep(delayMs);
                World.check(barrier.leave(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "all leave");
                return null;
            }));
        }
        for (Future<Void> one : work) {
            World.finish(one);
        }
    }

    private static void groupMember(World world) throws Exception {
        GroupMember one = new GroupMember(world.client(), "/group", "one", "first".getBytes());
        CuratorFramework dying = world.client();
        GroupMember other = new GroupMember(dying, "/group", "other", "second".getBytes());
        one.start();
        other.start();
        World.eventually("each sees both", () -> one.getCurrentMembers().keySet().equals(Set.of("one", "other"))
                && other.getCurrentMembers().size() == 2);
        World.eventually("each sees the data", () -> "second".equals(new String(one.getCurrentMembers().get("other"))));
        other.setThisData("third".getBytes());
        World.eventually("a change is seen", () -> "third".equals(new String(one.getCurrentMembers().get("other"))));
        world.expire(dying);
        World.eventually("the member joins again", () -> {
            byte[] data = one.getCurrentMembers().get("other");
            return data != null && "third".equals(new String(data));
        });
        other.close();
        World.eventually("the one that left is gone", () -> one.getCurrentMembers().keySet().equals(Set.of("one")));
        one.close();
    }
}

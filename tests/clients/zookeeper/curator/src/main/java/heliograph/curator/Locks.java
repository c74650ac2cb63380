package heliograph.curator;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.shared.SharedCount;

/** Mutexes, read-write locks and semaphores. */
final class Locks {
    private static final int CLIENTS = 3;
    private static final int ROUNDS = 8;

    private Locks() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("mutex", Locks::mutex);
        scenarios.put("mutex_of_expired_session", Locks::mutexOfExpiredSession);
        scenarios.put("revocable_mutex", Locks::revocableMutex);
        scenarios.put("semaphore_mutex", Locks::semaphoreMutex);
        scenarios.put("multi_lock", Locks::multiLock);
        scenarios.put("read_write_lock", Locks::readWriteLock);
        scenarios.put("semaphore", Locks::semaphore);
        scenarios.put("semaphore_of_shared_count", Locks::semaphoreOfSharedCount);
    }

    private static void contend(World world, List<? extends InterProcessLock> locks) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        int[] count = {0}; // guarded by the lock that is tested
        List<Future<Void>> work = new ArrayList<>();
        for (InterProcessLock lock : locks) {
            work.add(world.start(() -> {
                for (int round = 0; round < ROUNDS; round++) {
                    World.check(lock.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the lock is acquired");
                    World.same(1, inside.incrementAndGet());
                    count[0]++;
                    inside.decrementAndGet();
                    lock.release();
                }
                return null;
            }));
        }
        for (Future<Void> one : work) {
            World.finish(one);
        }
        World.same(locks.size() * ROUNDS, count[0]);
    }

    private static void mutex(World world) throws Exception {
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int number = 0; number < CLIENTS; number++) {
            mutexes.add(new InterProcessMutex(world.client(), "/lock"));
        }
        contend(world, mutexes);
        InterProcessMutex first = mutexes.get(0);
        first.acquire();
        first.acquire(); // it is reentrant
        first.release();
        World.check(first.isAcquiredInThisProcess(), "the mutex is held until the last release");
        World.check(!mutexes.get(1).acquire(200, TimeUnit.MILLISECONDS), "the mutex is not acquired by another");
        World.same(1, first.getParticipantNodes().size());
        first.release();
        World.check(mutexes.get(1).acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the other's turn comes");
        mutexes.get(1).release();
    }

    private static void mutexOfExpiredSession(World world) throws Exception {
        CuratorFramework holder = world.client();
        InterProcessMutex held = new InterProcessMutex(holder, "/lock");
        InterProcessMutex waiting = new InterProcessMutex(world.client(), "/lock");
        held.acquire();
        Future<Boolean> turn = world.start(() -> waiting.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS));
        Thread.sleep(200);
        World.check(!turn.isDone(), "the second client waits");
        world.expire(holder);
        World.check(World.finish(turn), "the lock of an expired session is free");
    }

    private static void revocableMutex(World world) throws Exception {
        CuratorFramework asking = world.client();
        InterProcessMutex held = new InterProcessMutex(world.client(), "/lock");
        AtomicBoolean asked = new AtomicBoolean();
        held.makeRevocable(mutex -> asked.set(true));
        held.acquire();
        Revoker.attemptRevoke(asking, held.getParticipantNodes().iterator().next());
        World.eventually("the holder is asked to release", asked::get);
        held.release();
    }

    private static void semaphoreMutex(World world) throws Exception {
        List<InterProcessSemaphoreMutex> mutexes = new ArrayList<>();
        for (int number = 0; number < CLIENTS; number++) {
            mutexes.add(new InterProcessSemaphoreMutex(world.client(), "/lock"));
        }
        contend(world, mutexes);
    }

    private static void multiLock(World world) throws Exception {
        CuratorFramework client = world.client();
        InterProcessMutex other = new InterProcessMutex(world.client(), "/two");
        InterProcessMultiLock both = new InterProcessMultiLock(client, Arrays.asList("/one", "/two"));
        other.acquire();
        World.check(!both.acquire(200, TimeUnit.MILLISECONDS), "one of two is taken");
        other.release();
        World.check(both.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "both are acquired");
        World.check(!other.acquire(200, TimeUnit.MILLISECONDS), "both are held");
        both.release();
    }

    private static void readWriteLock(World world) throws Exception {
        InterProcessReadWriteLock one = new InterProcessReadWriteLock(world.client(), "/lock");
        InterProcessReadWriteLock other = new InterProcessReadWriteLock(world.client(), "/lock");
        one.readLock().acquire();
        World.check(other.readLock().acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "readers share the lock");
        World.check(!other.writeLock().acquire(200, TimeUnit.MILLISECONDS), "a reader does not become the writer");
        other.readLock().release();
        World.check(!other.writeLock().acquire(200, TimeUnit.MILLISECONDS), "the writer waits for the reader");
        one.readLock().release();
        World.check(other.writeLock().acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the writer is alone");
        World.check(!one.readLock().acquire(200, TimeUnit.MILLISECONDS), "a reader waits for the writer");
        World.check(other.readLock().acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "the writer reads, too");
        other.writeLock().release(); // the lock is downgraded
        World.check(one.readLock().acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "readers share the lock again");
        one.readLock().release();
        other.readLock().release();
        contend(world, List.of(one.writeLock(), other.writeLock()));
    }

    private static void semaphore(World world) throws Exception {
        List<InterProcessSemaphoreV2> semaphores = new ArrayList<>();
        for (int number = 0; number < CLIENTS; number++) {
            semaphores.add(new InterProcessSemaphoreV2(world.client(), "/semaphore", 2));
        }
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        List<Future<Void>> work = new ArrayList<>();
        for (InterProcessSemaphoreV2 semaphore : semaphores) {
            work.add(world.start(() -> {
                for (int round = 0; round < ROUNDS; round++) {
                    Lease lease = semaphore.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS);
                    World.check(lease != null, "a lease is free in the end");
                    most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                    Thread.sleep(5);
                    inside.decrementAndGet();
                    semaphore.returnLease(lease);
                }
                return null;
            }));
        }
        for (Future<Void> one : work) {
            World.finish(one);
        }
        World.check(most.get() <= 2, "no more than two hold a lease at once");
        CuratorFramework dying = world.client();
        InterProcessSemaphoreV2 lost = new InterProcessSemaphoreV2(dying, "/semaphore", 2);
        World.same(2, lost.acquire(2, World.DEADLINE_SECONDS, TimeUnit.SECONDS).size());
        World.same(null, semaphores.get(0).acquire(200, TimeUnit.MILLISECONDS));
        dying.close();
        World.same(2, semaphores.get(0).acquire(2, World.DEADLINE_SECONDS, TimeUnit.SECONDS).size());
    }

    private static void semaphoreOfSharedCount(World world) throws Exception {
        CuratorFramework client = world.client();
        try (SharedCount count = new SharedCount(client, "/count", 1);
                SharedCount elsewhere = new SharedCount(world.client(), "/count", 1)) {
            count.start();
            elsewhere.start();
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, "/semaphore", count);
            Lease lease = semaphore.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS);
            World.same(null, semaphore.acquire(200, TimeUnit.MILLISECONDS));
            elsewhere.setCount(2);
            World.eventually("the new count is seen", () -> count.getCount() == 2);
            Lease second = semaphore.acquire(World.DEADLINE_SECONDS, TimeUnit.SECONDS);
            World.check(second != null, "there is a second lease");
            semaphore.returnAll(List.of(lease, second));
        }
    }
}

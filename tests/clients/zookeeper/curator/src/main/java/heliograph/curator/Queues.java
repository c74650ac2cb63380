package heliograph.curator;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;

/** Queues. */
final class Queues {
    private Queues() {}

    static void addTo(Map<String, Main.Scenario> scenarios) {
        scenarios.put("simple_queue", Queues::simple);
        scenarios.put("queue", Queues::queue);
        scenarios.put("queue_with_lock", Queues::queueWithLock);
        scenarios.put("priority_queue", Queues::priority);
        scenarios.put("delay_queue", Queues::delay);
    }

    private static void simple(World world) throws Exception {
        SimpleDistributedQueue one = new SimpleDistributedQueue(world.client(), "/queue");
        SimpleDistributedQueue other = new SimpleDistributedQueue(world.client(), "/queue");
        World.same(null, one.poll());
        for (int number = 0; number < 5; number++) {
            World.check(one.offer(("item-" + number).getBytes()), "an item is stored");
        }
        World.same("item-0", new String(other.peek()));
        World.same("item-0", new String(other.element()));
        for (int number = 0; number < 5; number++) {
            World.same("item-" + number, new String((number % 2 == 0 ? one : other).remove()));
        }
        try {
            one.remove();
            throw new AssertionError("an empty queue has no element");
        } catch (NoSuchElementException expected) {
            World.same(null, other.poll(100, TimeUnit.MILLISECONDS));
        }
        Future<byte[]> taken = world.start(other::take);
        Thread.sleep(100);
        World.check(one.offer("late".getBytes()), "an item is stored");
        World.same("late", new String(World.finish(taken)));
    }

    private static final class Collected implements QueueConsumer<String> {
        final List<String> items = Collections.synchronizedList(new ArrayList<>());

        @Override
        public void consumeMessage(String message) {
            items.add(message);
        }

        @Override
        public void stateChanged(CuratorFramework client, ConnectionState state) {}
    }

    private static final QueueSerializer<String> TEXT = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return item.getBytes();
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes);
        }
    };

    private static void queue(World world) throws Exception {
        Collected found = new Collected();
        try (DistributedQueue<String> producer = QueueBuilder.builder(world.client(), null, TEXT, "/queue").buildQueue();
                DistributedQueue<String> consumer =
                        QueueBuilder.builder(world.client(), found, TEXT, "/queue").buildQueue()) {
            producer.start();
            List<String> expected = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                producer.put("item-" + number);
                expected.add("item-" + number);
            }
            World.check(producer.flushPuts(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "all are stored");
            consumer.start();
            World.eventually("all items are consumed", () -> found.items.size() == expected.size());
            World.same(expected, new ArrayList<>(found.items));
        }
    }

    private static void queueWithLock(World world) throws Exception {
        Collected one = new Collected();
        Collected other = new Collected();
        try (DistributedQueue<String> first =
                        QueueBuilder.builder(world.client(), one, TEXT, "/queue").lockPath("/locks").buildQueue();
                DistributedQueue<String> second =
                        QueueBuilder.builder(world.client(), other, TEXT, "/queue").lockPath("/locks").buildQueue()) {
            first.start();
            second.start();
            for (int number = 0; number < 20; number++) {
                first.put("item-" + number);
            }
            World.eventually("all items are consumed", () -> one.items.size() + other.items.size() >= 20);
            List<String> all = new ArrayList<>(one.items);
            all.addAll(other.items);
            World.same(20L, all.stream().distinct().count());
            World.same(20, all.size());
        }
    }

    private static void priority(World world) throws Exception {
        Collected found = new Collected();
        try (DistributedPriorityQueue<String> producer =
                        QueueBuilder.builder(world.client(), null, TEXT, "/queue").buildPriorityQueue(0);
                DistributedPriorityQueue<String> consumer =
                        QueueBuilder.builder(world.client(), found, TEXT, "/queue").buildPriorityQueue(0)) {
            producer.start();
            producer.put("last", 5);
            producer.put("first", -1);
            producer.put("second", 3);
            World.check(producer.flushPuts(World.DEADLINE_SECONDS, TimeUnit.SECONDS), "all are stored");
            consumer.start();
            World.eventually("all items are consumed", () -> found.items.size() == 3);
            World.same(List.of("first", "second", "last"), new ArrayList<>(found.items));
        }
    }

    private static void delay(World world) throws Exception {
        Collected found = new Collected();
        try (DistributedDelayQueue<String> queue =
                QueueBuilder.builder(world.client(), found, TEXT, "/queue").buildDelayQueue()) {
            queue.start();
            long now = System.currentTimeMillis();
            queue.put("later", now + 1_000);
            queue.put("soon", now + 300);
            World.eventually("the first is due", () -> found.items.size() == 1);
            World.check(System.currentTimeMillis() >= now + 300, "an item waits for its time");
            World.eventually("both are due", () -> found.items.size() == 2);
            World.check(System.currentTimeMillis() >= now + 1_000, "an item waits for its time");
            World.same(List.of("soon", "later"), new ArrayList<>(found.items));
        }
    }
}

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A client of RocketMQ that measures. It is told what to do by lines of standard input, and answers
 * each with a line of JSON and {"end": error or ""}. Its argument is the name server's address. All
 * commands run in one process, so that Java has compiled what they share; each makes its own client.
 */
public class Load {
    private static final PrintStream OUT = System.out;
    private static final int TIMEOUT_MS = 30_000; // a call ends, even on a starved machine
    private static final int PATIENCE_SECONDS = 120;
    private static final int FILLING_THREADS = 4;
    private static final int FILLED_AT_ONCE = 100;
    private static final int PULLED_AT_ONCE = 32; // a broker gives no more

    private final String nameServer;

    private Load(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // where logs go
        Load load = new Load(args[0]);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String error = "";
            try {
                OUT.println(JSON.toJSONString(load.run(line.split(" "))));
            } catch (Exception e) {
                error = e.toString();
            }
            OUT.println(JSON.toJSONString(Map.of("end", error)));
            OUT.flush();
        }
        System.exit(0); // threads of the clients may live on
    }

    private Map<String, Object> run(String[] words) throws Exception {
        switch (words[0]) {
            case "topic":
                return topic(words[1], words[2], number(words[3]));
            case "send":
                return send(words[1], number(words[2]), number(words[3]), number(words[4]),
                    nanos(words[5]), nanos(words[6]));
            case "fill":
                return fill(words[1], number(words[2]), number(words[3]));
            case "consume":
                return consume(words[1], number(words[2]));
            case "wait":
                return await(words[1], number(words[2]), number(words[3]));
            case "pull":
                return pull(words[1], number(words[2]), nanos(words[3]), nanos(words[4]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Creates a topic on a broker. */
    private Map<String, Object> topic(String broker, String topic, int queues) throws Exception {
        DefaultMQAdminExt admin = named(new DefaultMQAdminExt(TIMEOUT_MS));
        admin.start();
        try {
            admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6));
        } finally {
            admin.shutdown();
        }
        return Map.of();
    }

    /**
     * Threads that share a producer, as an application's do, each of which waits for the answer to
     * its message, or batch, before it sends the next. What ends before the warm-up does is not
     * counted.
     */
    private Map<String, Object> send(
        String topic, int threads, int size, int batch, long warmUp, long measured)
        throws Exception {
        DefaultMQProducer producer = producer();
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        Times times = new Times();
        AtomicLong failed = new AtomicLong();
        String[] failure = {""};
        long from = System.nanoTime() + warmUp;
        long until = from + measured;
        try {
            inThreads(threads, number -> {
                Times own = new Times();
                String keys = "key-" + number + "-";
                long sent = 0;
                for (long begin = System.nanoTime(); begin < until; begin = System.nanoTime()) {
                    boolean isStored = false;
                    try {
                        isStored = batch == 1
                            ? isStored(producer, List.of(message(topic, keys + sent++, body)))
                            : isStored(producer, messages(topic, keys + sent++, body, batch));
                    } catch (Exception e) {
                        failure[0] = e.toString();
                    }
                    long end = System.nanoTime();
                    if (end >= from && end < until) {
                        if (isStored) {
                            own.add(end - begin);
                        } else {
                            failed.incrementAndGet();
                        }
                    }
                }
                times.addAll(own);
            });
        } finally {
            producer.shutdown();
        }
        if (times.count == 0) {
            throw new IllegalStateException("no send ended in time: " + failure[0]);
        }
        Map<String, Object> found = times.described();
        found.put("rate", times.count * (long) batch * 1e9 / measured);
        found.put("failed", failed.get());
        found.put("failure", failure[0]);
        return found;
    }

    /** So many messages, in batches, spread over all queues. */
    private Map<String, Object> fill(String topic, int size, int count) throws Exception {
        DefaultMQProducer producer = producer();
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        AtomicInteger left = new AtomicInteger(count);
        try {
            inThreads(FILLING_THREADS, number -> {
                while (true) {
                    int some = Math.min(FILLED_AT_ONCE, left.getAndAdd(-FILLED_AT_ONCE));
                    if (some <= 0) {
                        return;
                    }
                    List<Message> messages = messages(topic, "key-" + left.get(), body, some);
                    if (!isStored(producer, messages)) {
                        throw new IllegalStateException("a batch was not stored");
                    }
                }
            });
        } finally {
            producer.shutdown();
        }
        return Map.of();
    }

    /**
     * A push consumer of a group of its own, from the first message on. The time runs from the end
     * of the first tenth of so many messages, when all queues are consumed, to the last of them.
     */
    private Map<String, Object> consume(String topic, int count) throws Exception {
        AtomicInteger got = new AtomicInteger();
        AtomicLong begin = new AtomicLong();
        AtomicLong end = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        int first = count / 10;
        DefaultMQPushConsumer consumer = consumer(topic, message -> {
            int number = got.incrementAndGet();
            if (number == first) {
                begin.set(System.nanoTime());
            } else if (number == count) {
                end.set(System.nanoTime());
                done.countDown();
            }
        });
        try {
            if (!done.await(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("it got " + got + " of " + count + " messages");
            }
        } finally {
            consumer.shutdown();
        }
        return Map.of("rate", (count - first) * 1e9 / (end.get() - begin.get()));
    }

    /** Time from the send of each of so many messages to a push consumer that waits for it. */
    private Map<String, Object> await(String topic, int queues, int count) throws Exception {
        long round = System.nanoTime();
        Times times = new Times();
        Semaphore arrived = new Semaphore(0);
        DefaultMQPushConsumer consumer = consumer(topic, message -> {
            long now = System.nanoTime();
            ByteBuffer body = ByteBuffer.wrap(message.getBody());
            if (body.getLong() == round) { // others are of an earlier round
                long sent = body.getLong();
                if (sent > 0) {
                    times.add(now - sent);
                }
                arrived.release();
            }
        });
        DefaultMQProducer producer = producer();
        try {
            List<MessageQueue> all = producer.fetchPublishMessageQueues(topic);
            for (int i = 0; i < 2 * queues + count; i++) {
                boolean isCounted = i >= 2 * queues; // the consumer now waits in all queues
                ByteBuffer body = ByteBuffer.allocate(100);
                body.putLong(round).putLong(isCounted ? System.nanoTime() : 0);
                producer.send(new Message(topic, body.array()), all.get(i % all.size()));
                if (!arrived.tryAcquire(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("message " + i + " did not arrive");
                }
                Thread.sleep(5 + i % 7); // not in step with what a broker does every few ms
            }
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
        return times.described();
    }

    /** A pull consumer with so many threads, which share the queues, over and over. */
    private Map<String, Object> pull(String topic, int threads, long warmUp, long measured)
        throws Exception {
        DefaultMQPullConsumer consumer = named(new DefaultMQPullConsumer(fresh("pull")));
        consumer.start();
        AtomicLong got = new AtomicLong();
        try {
            List<MessageQueue> queues =
                new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
            long from = System.nanoTime() + warmUp;
            long until = from + measured;
            inThreads(threads, number -> {
                for (int i = number; System.nanoTime() < until; i = (i + threads) % queues.size()) {
                    MessageQueue queue = queues.get(i);
                    long at = consumer.minOffset(queue);
                    long end = consumer.maxOffset(queue);
                    while (at < end) {
                        PullResult result = consumer.pull(queue, "*", at, PULLED_AT_ONCE);
                        if (result.getPullStatus() != PullStatus.FOUND) {
                            throw new IllegalStateException(queue + " at " + at + ": " + result);
                        }
                        at = result.getNextBeginOffset();
                        long now = System.nanoTime();
                        if (now >= until) {
                            return;
                        }
                        if (now >= from) {
                            got.addAndGet(result.getMsgFoundList().size());
                        }
                    }
                }
            });
        } finally {
            consumer.shutdown();
        }
        return Map.of("rate", got.get() * 1e9 / measured);
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = named(new DefaultMQProducer("load"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        return producer;
    }

    /** A push consumer as it is configured without a word. */
    private DefaultMQPushConsumer consumer(String topic, Listener listener) throws Exception {
        DefaultMQPushConsumer consumer = named(new DefaultMQPushConsumer(fresh("push")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(listener::got);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private <T extends ClientConfig> T named(T client) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(fresh("load"));
        client.setMqClientApiTimeout(TIMEOUT_MS);
        return client;
    }

    private static boolean isStored(DefaultMQProducer producer, List<Message> messages)
        throws Exception {
        SendStatus status = messages.size() == 1
            ? producer.send(messages.get(0)).getSendStatus()
            : producer.send(messages).getSendStatus();
        return status == SendStatus.SEND_OK;
    }

    private static List<Message> messages(String topic, String keys, byte[] body, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            messages.add(message(topic, keys + "-" + i, body));
        }
        return messages;
    }

    private static Message message(String topic, String key, byte[] body) {
        return new Message(topic, "TagA", key, body);
    }

    /** Runs work in threads; throws what the first of them threw. */
    private static void inThreads(int count, Work work) throws Exception {
        List<Thread> threads = new ArrayList<>();
        List<Exception> errors = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            int number = n;
            Thread thread = new Thread(() -> {
                try {
                    work.run(number);
                } catch (Exception e) {
                    synchronized (errors) {
                        errors.add(e);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (!errors.isEmpty()) {
            throw errors.get(0);
        }
    }

    private static String fresh(String name) {
        return name + "-" + System.nanoTime();
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private static long nanos(String seconds) {
        return (long) (Double.parseDouble(seconds) * 1e9);
    }

    private interface Work {
        void run(int number) throws Exception;
    }

    private interface Listener {
        void got(MessageExt message);
    }

    /** Nanoseconds that things took. */
    private static final class Times {
        private long[] values = new long[1 << 12];
        private int count;

        synchronized void add(long value) {
            if (count == values.length) {
                values = Arrays.copyOf(values, 2 * count);
            }
            values[count++] = value;
        }

        synchronized void addAll(Times other) {
            for (int i = 0; i < other.count; i++) {
                add(other.values[i]);
            }
        }

        synchronized Map<String, Object> described() {
            long[] sorted = Arrays.copyOf(values, count);
            Arrays.sort(sorted);
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("count", count);
            found.put("medianMs", at(sorted, 0.5));
            found.put("p99Ms", at(sorted, 0.99));
            return found;
        }

        private static double at(long[] sorted, double part) {
            return sorted[(int) (part * (sorted.length - 1))] / 1e6;
        }
    }
}

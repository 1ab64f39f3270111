import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Orderly consumers of one group, which join and leave. Arguments: the name server, the topic,
 * the group, and how many queues the topic has. Lines of standard input tell what to do: `join NAME`, `leave NAME`, `allow COUNT` more
 * messages of each queue to be consumed, `seen`: answer with what was consumed since the last time.
 * The answers are lines of JSON, the last of which is {"end": error or ""}.
 */
public class Orderly {
    private static final PrintStream OUT = System.out;
    private static final Map<Integer, Semaphore> ALLOWED = new ConcurrentHashMap<>();
    private static final Set<Integer> BUSY = ConcurrentHashMap.newKeySet();
    private static final List<Map<String, Object>> SEEN = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // where logs go
        // Milliseconds after which a queue is asked for again that another member still holds.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        System.setProperty("rocketmq.client.unlockDelayTimeMills", "1000");
        Map<String, DefaultMQPushConsumer> members = new LinkedHashMap<>();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String error = "";
            try {
                switch (words[0]) {
                    case "join":
                        members.put(words[1], member(args, words[1]));
                        break;
                    case "leave":
                        members.remove(words[1]).shutdown();
                        break;
                    case "allow":
                        int count = Integer.parseInt(words[1]);
                        for (int queue = 0; queue < Integer.parseInt(args[3]); queue++) {
                            allowed(queue).release(count);
                        }
                        break;
                    case "seen":
                        synchronized (SEEN) {
                            SEEN.forEach(Orderly::answer);
                            SEEN.clear();
                        }
                        break;
                    default:
                        throw new IllegalArgumentException(line);
                }
            } catch (Exception e) {
                error = e.toString();
            }
            answer(Map.of("end", error));
        }
        System.exit(0); // threads of the clients may live on
    }

    private static DefaultMQPushConsumer member(String[] args, String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // A message that is being consumed is consumed to its end before the queue goes to another.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        consumer.setSuspendCurrentQueueTimeMillis(50); // until it looks again if it is allowed
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener(
            (MessageListenerOrderly) (messages, context) -> consume(name, messages));
        consumer.start();
        return consumer;
    }

    private static Semaphore allowed(int queue) {
        return ALLOWED.computeIfAbsent(queue, key -> new Semaphore(0));
    }

    private static ConsumeOrderlyStatus consume(String name, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            if (!allowed(message.getQueueId()).tryAcquire()) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("member", name);
            found.put("queueId", message.getQueueId());
            found.put("queueOffset", message.getQueueOffset());
            found.put("body", message.getBody());
            found.put("isAlone", BUSY.add(message.getQueueId()));
            synchronized (SEEN) {
                SEEN.add(found);
            }
            BUSY.remove(message.getQueueId());
        }
        return ConsumeOrderlyStatus.SUCCESS;
    }

    private static synchronized void answer(Map<String, Object> line) {
        OUT.println(JSON.toJSONString(line));
        OUT.flush();
    }
}

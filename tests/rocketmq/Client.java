import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A client of RocketMQ that is told what to do by lines of standard input, and answers with lines of
 * JSON, the last of which is {"end": error or null}. Arguments: the name server's and the broker's
 * address. Each command makes its own client, so that none remembers the routes of a broker that is
 * gone.
 */
public class Client {
    private static final PrintStream OUT = System.out;

    private final String nameServer;
    private final String broker;

    private Client(String nameServer, String broker) {
        this.nameServer = nameServer;
        this.broker = broker;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // where logs go
        Client client = new Client(args[0], args[1]);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String error = null;
            try {
                client.run(line.split(" "));
            } catch (Exception e) {
                error = e.toString();
            }
            Map<String, Object> end = new LinkedHashMap<>();
            end.put("end", error == null ? "" : error);
            answer(end);
        }
        System.exit(0); // threads of the clients may live on
    }

    private void run(String[] words) throws Exception {
        switch (words[0]) {
            case "pull":
                pull(words[1], words[2]);
                break;
            case "send":
                send(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), words[4],
                    Integer.parseInt(words[5]));
                break;
            case "produce":
                produce(words[1], Integer.parseInt(words[2]), words[3]);
                break;
            case "transact":
                transact(words[1], Integer.parseInt(words[2]));
                break;
            case "settle":
                settle(words[1], Integer.parseInt(words[2]));
                break;
            case "consume":
                consume(words[1], words[2], Integer.parseInt(words[3]));
                break;
            case "lite":
                lite(words[1], words[2], Integer.parseInt(words[3]));
                break;
            case "flood":
                flood(words[1], Integer.parseInt(words[2]));
                break;
            default:
                ask(words);
        }
    }

    /** Every message of every queue, or those with some tags, from its minimum offset on. */
    private void pull(String topic, String tags) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("tests-pull");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(fresh());
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long at = consumer.minOffset(queue);
                long end = consumer.maxOffset(queue);
                while (at < end) {
                    PullResult result = consumer.pull(queue, tags, at, 32);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            answer(described(message, queue.getQueueId()));
                        }
                    } else if (result.getPullStatus() != PullStatus.NO_MATCHED_MSG) {
                        throw new IllegalStateException(queue + " at " + at + ": " + result);
                    }
                    at = result.getNextBeginOffset();
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** So many messages of a topic, as a member of a group gets them; says first that it waits. */
    private void consume(String topic, String group, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(fresh());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // A listener that is still at work has its offset stored too: the client forgets it else.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                answer(described(message, message.getQueueId()));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            answer(new LinkedHashMap<>());
            if (!left.await(180, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " messages have not come");
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** So many messages of a topic, as a lite pull consumer polls them. */
    private void lite(String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(fresh());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            long until = System.currentTimeMillis() + 180_000;
            for (int left = count; left > 0; ) {
                if (System.currentTimeMillis() > until) {
                    throw new IllegalStateException(left + " messages have not come");
                }
                for (MessageExt message : consumer.poll(1000)) {
                    answer(described(message, message.getQueueId()));
                    left--;
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
    }

    /** So many messages into one queue; bodies and keys are the prefix and a number. */
    private void send(String topic, int queueId, int count, String prefix, int delay)
        throws Exception {
        DefaultMQProducer producer = producer();
        try {
            for (int i = 0; i < count; i++) {
                Message message = numbered(topic, prefix + i);
                if (delay > 0) {
                    message.setDelayTimeLevel(delay);
                }
                answer(described(producer.send(message, (queues, m, id) -> {
                    for (MessageQueue queue : queues) {
                        if (queue.getQueueId() == (Integer) id) {
                            return queue;
                        }
                    }
                    throw new IllegalArgumentException("no queue " + id + " in " + queues);
                }, queueId), prefix + i));
            }
        } finally {
            producer.shutdown();
        }
    }

    /** So many messages, each once, to queues that the producer chooses. */
    private void produce(String topic, int count, String prefix) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            for (int i = 0; i < count; i++) {
                answer(described(producer.send(numbered(topic, prefix + i), 60_000), prefix + i));
            }
        } finally {
            producer.shutdown();
        }
    }

    private static Message numbered(String topic, String body) {
        return new Message(topic, "sent", body, body.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Transactional messages: a third is committed at once, a third rolled back, and the broker has
     * to ask about the others, of which it gets "unknown" first, then "commit".
     */
    private void transact(String topic, int count) throws Exception {
        Map<String, Integer> asked = new LinkedHashMap<>();
        CountDownLatch left = new CountDownLatch(count / 3);
        TransactionMQProducer producer = new TransactionMQProducer("tests-transact");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(fresh());
        producer.setSendMsgTimeout(60_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                LocalTransactionState[] states = LocalTransactionState.values();
                return states[(Integer) number % states.length];
            }

            @Override
            public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> found = described(message, message.getQueueId());
                found.put("transactionId", message.getTransactionId());
                answer(found);
                if (asked.merge(message.getKeys(), 1, Integer::sum) < 2) {
                    return LocalTransactionState.UNKNOW;
                }
                left.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            for (int i = 0; i < count; i++) {
                byte[] body = ("transaction-" + i).getBytes(StandardCharsets.UTF_8);
                Message message = new Message(topic, "sent", "key-" + i, body);
                TransactionSendResult result = producer.sendMessageInTransaction(message, i);
                Map<String, Object> found = described(result, "transaction-" + i);
                found.put("outcome", result.getLocalTransactionState().name());
                answer(found);
            }
            if (!left.await(90, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the broker has asked about " + asked);
            }
        } finally {
            producer.shutdown();
        }
    }

    /** Waits until the broker has asked about so many transactions of a group; commits them. */
    private void settle(String group, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(fresh());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                throw new IllegalStateException("nothing is sent");
            }

            @Override
            public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
                answer(described(message, message.getQueueId()));
                left.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        // It tells a broker of itself only when it knows it by the route of a topic of its own:
        // 4.9's asks for one when it starts, 5.3's only for those that it is made with.
        MQClientInstance instance = producer.getDefaultMQProducerImpl().getMqClientFactory();
        instance.updateTopicRouteInfoFromNameServer("orders");
        instance.sendHeartbeatToAllBrokerWithLock();
        try {
            if (!left.await(90, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the broker has not asked about all");
            }
        } finally {
            producer.shutdown();
        }
    }

    /** Messages from several threads, until the broker is gone. */
    private void flood(String topic, int threads) throws Exception {
        DefaultMQProducer producer = producer();
        List<Thread> running = new ArrayList<>();
        for (int n = 0; n < threads; n++) {
            String prefix = "flood-" + n + "-";
            Thread thread = new Thread(() -> {
                try {
                    for (int i = 0; ; i++) {
                        byte[] body = (prefix + i).getBytes(StandardCharsets.UTF_8);
                        Message message = new Message(topic, "flood", prefix + i, body);
                        answer(described(producer.send(message), prefix + i));
                    }
                } catch (Exception gone) {
                    // what the caller waits for
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        producer.shutdown();
    }

    /** What the tools for administrators ask. */
    private void ask(String[] words) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName(fresh());
        admin.start();
        try {
            switch (words[0]) {
                case "status":
                    for (var entry :
                        admin.examineTopicStats(words[1]).getOffsetTable().entrySet()) {
                        Map<String, Object> found = new LinkedHashMap<>();
                        found.put("queueId", entry.getKey().getQueueId());
                        found.put("min", entry.getValue().getMinOffset());
                        found.put("max", entry.getValue().getMaxOffset());
                        answer(found);
                    }
                    break;
                case "route":
                    for (var data : admin.examineTopicRouteInfo(words[1]).getQueueDatas()) {
                        Map<String, Object> found = new LinkedHashMap<>();
                        found.put("brokerName", data.getBrokerName());
                        found.put("readQueueNums", data.getReadQueueNums());
                        found.put("writeQueueNums", data.getWriteQueueNums());
                        found.put("perm", data.getPerm());
                        answer(found);
                    }
                    break;
                case "key":
                    for (MessageExt message : admin
                        .queryMessage(words[1], words[2], 64, 0, Long.MAX_VALUE).getMessageList()) {
                        answer(described(message, message.getQueueId()));
                    }
                    break;
                case "id":
                    MessageExt message = admin.viewMessage(words[1], words[2]);
                    answer(described(message, message.getQueueId()));
                    break;
                case "topic":
                    TopicConfig config = new TopicConfig(words[1]);
                    config.setReadQueueNums(Integer.parseInt(words[2]));
                    config.setWriteQueueNums(Integer.parseInt(words[3]));
                    config.setPerm(Integer.parseInt(words[4]));
                    admin.createAndUpdateTopicConfig(broker, config);
                    break;
                default:
                    throw new IllegalArgumentException(words[0]);
            }
        } finally {
            admin.shutdown();
        }
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("tests-send");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(fresh());
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private static String fresh() {
        return Long.toString(System.nanoTime());
    }

    private static Map<String, Object> described(SendResult result, String body) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("status", result.getSendStatus().name());
        found.put("body", body);
        found.put("msgId", result.getOffsetMsgId());
        found.put("uniqKey", result.getMsgId());
        found.put("queueId", result.getMessageQueue().getQueueId());
        found.put("queueOffset", result.getQueueOffset());
        return found;
    }

    private static Map<String, Object> described(MessageExt message, int queueId) {
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("topic", message.getTopic());
        found.put("queueId", queueId);
        found.put("queueOffset", message.getQueueOffset());
        found.put("physicalOffset", message.getCommitLogOffset());
        found.put("storeSize", message.getStoreSize());
        found.put("storeTimestamp", message.getStoreTimestamp());
        found.put("bornTimestamp", message.getBornTimestamp());
        found.put("flag", message.getFlag());
        found.put("bodyCRC", message.getBodyCRC());
        found.put("tags", message.getTags());
        found.put("keys", message.getKeys());
        found.put("body", message.getBody());
        found.put("properties", message.getProperties());
        if (message instanceof MessageClientExt) {
            found.put("msgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        return found;
    }

    private static synchronized void answer(Map<String, Object> line) {
        OUT.println(JSON.toJSONString(line));
        OUT.flush();
    }
}

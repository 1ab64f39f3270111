import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * An application with RocketMQ's Java client, as a process that is killed. Arguments: the name server,
 * the topic, 0, and one of nothing, --once, --orderly ID, --transactional. It says and reads the same
 * lines as tests/broker/clients/cpp_client.py, or, if it is transactional, as
 * tests/fault/rounds/remoting/producer.py. With --once it sends nothing again, and says "failed BODY".
 */
public class Application {
    private static final PrintStream OUT = System.out;

    private final Map<String, CountDownLatch> released = new ConcurrentHashMap<>();
    private final Set<String> open = ConcurrentHashMap.newKeySet();
    private final String nameServer;
    private final String topic;

    private Application(String nameServer, String topic) {
        this.nameServer = nameServer;
        this.topic = topic;
    }

    private interface Sending {
        void send(String body) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // where logs go
        Application application = new Application(args[0], args[1]);
        String mode = args.length > 3 ? args[3] : "";
        try {
            Sending sending = mode.equals("--transactional")
                ? application.transactional()
                : application.plain(mode.equals("--orderly") ? args[4] : null, mode.equals("--once"));
            application.work(sending);
        } catch (Exception e) {
            end(e);
        }
    }

    /** A consumer does not start without a name server, but its threads would keep the process. */
    private static void end(Exception e) {
        e.printStackTrace();
        System.exit(1);
    }

    /** One thread sends, another reads lines: it may have to release what the first waits for. */
    private void work(Sending sending) throws Exception {
        BlockingQueue<String> bodies = new LinkedBlockingQueue<>();
        new Thread(() -> {
            try {
                while (true) {
                    sending.send(bodies.take());
                }
            } catch (Exception e) {
                end(e);
            }
        }).start();
        say("ready");
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words.length > 1) {
                latch(words[1]).countDown();
            } else {
                bodies.add(words[0]);
            }
        }
        System.exit(0);
    }

    /** Sends and consumes; in order, if the client is given an ID. */
    private Sending plain(String id, boolean once) throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer("java-producers"), id);
        DefaultMQPushConsumer consumer =
            configured(new DefaultMQPushConsumer("java-consumers"), id);
        if (once) {
            producer.setRetryTimesWhenSendFailed(0);
        }
        producer.start();
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(topic, "*");
        if (id == null) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                got(messages.get(0))
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        } else {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                got(messages.get(0));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        }
        consumer.start();
        Sending sending = body -> {
            Message message = message(body);
            SendResult result = id == null
                ? producer.send(message)
                : producer.send(message, (queues, m, number) ->
                    queues.get((Integer) number % queues.size()),
                    Integer.parseInt(body.substring(body.lastIndexOf('-') + 1)));
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
            say("sent", result.getMsgId(), body, result.getQueueOffset());
        };
        return once ? patient(sending) : sending;
    }

    /** Continues after what could not be sent. */
    private static Sending patient(Sending sending) {
        return body -> {
            try {
                sending.send(body);
            } catch (Exception e) {
                e.printStackTrace();
                say("failed", body);
                Thread.sleep(200);
            }
        };
    }

    /** Notes a message that has come; whether it is to come again. */
    private boolean got(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        hold(body);
        say("got", body, message.getReconsumeTimes(), message.getKeys(), message.getTags(),
            message.getQueueId(), message.getQueueOffset());
        return body.contains("refused") && message.getReconsumeTimes() == 0;
    }

    private Sending transactional() throws Exception {
        TransactionMQProducer producer = configured(new TransactionMQProducer("pg"), null);
        producer.setRetryTimesWhenSendFailed(0); // each half message at most once
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object body) {
                say("half", body);
                if (((String) body).contains("late")) {
                    return LocalTransactionState.UNKNOW;
                }
                hold((String) body);
                return outcome((String) body);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (open.contains(body)) {
                    return LocalTransactionState.UNKNOW;
                }
                hold(body);
                return outcome(body);
            }
        });
        producer.start();
        producer.fetchPublishMessageQueues(topic); // so that it tells the broker of itself
        return body -> {
            open.add(body);
            try {
                producer.sendMessageInTransaction(message(body), body);
                say("ended", body);
            } catch (Exception e) {
                e.printStackTrace();
                say("failed", body);
                Thread.sleep(200);
            } finally {
                open.remove(body);
            }
        };
    }

    private static LocalTransactionState outcome(String body) {
        return body.contains("commit")
            ? LocalTransactionState.COMMIT_MESSAGE
            : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private Message message(String body) {
        return new Message(topic, "TagA", "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Settings of a client that soon finds its broker again, and soon reports its progress. */
    private <T extends ClientConfig> T configured(T client, String id) {
        client.setNamesrvAddr(nameServer);
        client.setHeartbeatBrokerInterval(1_000);
        client.setPollNameServerInterval(1_000);
        client.setPersistConsumerOffsetInterval(500);
        if (id != null) {
            client.setInstanceName(id);
        }
        return client;
    }

    private void hold(String body) {
        if (body.contains("held")) {
            say("held", body);
            try {
                latch(body).await();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private CountDownLatch latch(String body) {
        return released.computeIfAbsent(body, any -> new CountDownLatch(1));
    }

    private static void say(Object... words) {
        List<String> texts = new ArrayList<>();
        for (Object word : words) {
            texts.add(String.valueOf(word));
        }
        synchronized (OUT) {
            OUT.println(String.join(" ", texts));
            OUT.flush();
        }
    }
}

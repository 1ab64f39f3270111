import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends of every kind, a consumer that fails, and one that replies. Arguments: the name server, the
 * topic and the group. Lines of standard input tell what to do: `send`, `call` (a question, and its
 * reply), or `consume COUNT`: until so many have come. The message "again" fails when it comes
 * first, the message "dead" whenever it comes, which is three times. The answers are lines of JSON,
 * the last of which is {"end": error or ""}.
 */
public class Kinds {
    private static final PrintStream OUT = System.out;
    private static final int PATIENCE = 60_000;

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // where logs go
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String error = "";
            try {
                switch (words[0]) {
                    case "send":
                        send(args);
                        break;
                    case "consume":
                        consume(args, Integer.parseInt(words[1]));
                        break;
                    case "call":
                        call(args[0], args[1]);
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

    private static void send(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("tests-kinds");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        try {
            producer.send(message(args[1], "one"), PATIENCE);
            producer.send(
                List.of(message(args[1], "batch-0"), message(args[1], "batch-1")), PATIENCE);
            CompletableFuture<SendResult> sent = new CompletableFuture<>();
            producer.send(message(args[1], "asynchronous"), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent.complete(result);
                }

                @Override
                public void onException(Throwable cause) {
                    sent.completeExceptionally(cause);
                }
            }, PATIENCE);
            sent.get(PATIENCE, TimeUnit.MILLISECONDS);
            producer.sendOneway(message(args[1], "one-way"));
            Message late = message(args[1], "delayed");
            late.setDelayTimeLevel(1);
            producer.send(late, PATIENCE);
            producer.send(message(args[1], "again"), PATIENCE);
            producer.send(message(args[1], "dead"), PATIENCE);
        } finally {
            producer.shutdown();
        }
    }

    private static void consume(String[] args, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        // What fails last is still sent back.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("body", body);
            found.put("reconsumeTimes", message.getReconsumeTimes());
            found.put("late", message.getStoreTimestamp() - message.getBornTimestamp());
            answer(found);
            left.countDown();
            boolean fails =
                body.equals("dead") || body.equals("again") && message.getReconsumeTimes() == 0;
            return fails
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!left.await(180, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " messages have not come");
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** A question to a consumer, and its reply; the producer of the question tells of its traces. */
    private static void call(String nameServer, String topic) throws Exception {
        DefaultMQProducer asking = new DefaultMQProducer("tests-asking", null, true, null);
        DefaultMQProducer replying = new DefaultMQProducer("tests-replying");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("tests-replier");
        for (ClientConfig each : new ClientConfig[] {asking, replying, consumer}) {
            each.setNamesrvAddr(nameServer);
            each.setInstanceName(Long.toString(System.nanoTime()));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt each : messages) {
                    byte[] body = ("re: " + new String(each.getBody())).getBytes();
                    replying.send(MessageUtil.createReplyMessage(each, body), 10_000);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception e) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        try {
            replying.start();
            consumer.start();
            asking.start();
            // 5.3.3 also calls back when the question is stored; a request that waits ends then.
            CompletableFuture<Message> reply = new CompletableFuture<>();
            asking.request(new Message(topic, "why?".getBytes()), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    if (message != null) {
                        reply.complete(message);
                    }
                }

                @Override
                public void onException(Throwable cause) {
                    reply.completeExceptionally(cause);
                }
            }, 60_000);
            answer(Map.of("reply", new String(reply.get(90, TimeUnit.SECONDS).getBody())));
            awaitTraces(asking);  // 5.3.3 gives those up that it still has when it ends
        } finally {
            asking.shutdown();
            replying.shutdown();
            consumer.shutdown();
        }
    }

    private static void awaitTraces(DefaultMQProducer asking) throws Exception {
        long until = System.currentTimeMillis() + 60_000;
        while (true) {
            try {
                asking.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
                    .getTopicRouteInfoFromNameServer("RMQ_SYS_TRACE_TOPIC", 3000);
                return;
            } catch (MQClientException e) {
                if (System.currentTimeMillis() > until) {
                    throw e;
                }
                Thread.sleep(200);
            }
        }
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static synchronized void answer(Map<String, Object> line) {
        OUT.println(JSON.toJSONString(line));
        OUT.flush();
    }
}

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
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends of every kind, and a consumer that fails. Arguments: the name server, the topic and the
 * group. Lines of standard input tell what to do: `send`, or `consume COUNT`: until so many have
 * come. The message "again" fails when it comes first, the message "dead" whenever it comes, which
 * is three times. The answers are lines of JSON, the last of which is
 * {"end": error or ""}.
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
                if (words[0].equals("send")) {
                    send(args);
                } else {
                    consume(args, Integer.parseInt(words[1]));
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

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static synchronized void answer(Map<String, Object> line) {
        OUT.println(JSON.toJSONString(line));
        OUT.flush();
    }
}

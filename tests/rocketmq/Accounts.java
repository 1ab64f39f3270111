import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a consumer with an access key. Arguments: the name server, the topic, the access
 * key and its secret. Prints what was sent, what was refused, and what has come; ends when the
 * message that was sent has come, or the send was refused.
 */
public class Accounts {
    public static void main(String[] args) throws Exception {
        SessionCredentials keys = new SessionCredentials(args[2], args[3]);
        DefaultMQProducer producer = new DefaultMQProducer("producers", new AclClientRPCHook(keys));
        producer.setNamesrvAddr(args[0]);
        producer.start();
        byte[] body = "signed".getBytes(StandardCharsets.UTF_8);
        try {
            producer.send(new Message(args[1], "tag", "key", body), 60_000);
        } catch (Exception e) {
            System.out.println("refused " + e.getMessage().replace('\n', ' '));
            System.exit(0);
        }
        System.out.println("sent");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            "consumers", new AclClientRPCHook(keys), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener(
            (org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, c) -> {
                for (MessageExt message : messages) {
                    System.out.println("got " + new String(message.getBody(), StandardCharsets.UTF_8));
                }
                System.exit(0);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        consumer.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}

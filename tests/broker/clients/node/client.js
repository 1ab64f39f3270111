// The Node client, as a process: sends messages, and consumes them.
//
//     node client.js NAME_SERVER TOPIC COUNT [ACCESS_KEY SECRET_KEY]
//
// It prints `sent MSGID BODY OFFSET` and `got BODY TIMES KEY TAG QUEUE OFFSET`, sends COUNT messages,
// and one for each line that it reads then. At the end of its input it ends. What a body holds
// decides what the consumer does: "refused" is to be consumed again if it was not before; with "held"
// it says `held BODY` and waits for the line `release BODY`, before `got`.

'use strict';

const { EventEmitter, once } = require('events');
const readline = require('readline');
const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const [nameServer, topic, count, accessKeyId = '', accessKeySecret = ''] = process.argv.slice(2);
const silent = () => {};
const logger = { info: silent, debug: silent, warn: silent, error: (...words) => console.error(...words) };
const settings = { httpclient, nameSrv: nameServer, logger, accessKeyId, accessKeySecret };

async function main() {
  const producer = new Producer({ ...settings, producerGroup: 'node-producers' });
  await producer.ready();

  async function send(body) {
    const message = new Message(topic, 'TagA', body);
    message.keys = [`key-${body}`];
    const result = await producer.send(message);
    console.log('sent', result.msgId, body, result.queueOffset);
  }

  for (let number = 0; number < Number(count); number++) await send(`body-${number}`);

  const released = new Set();
  const changed = new EventEmitter().setMaxListeners(0);
  const consumer = new Consumer({
    ...settings, consumerGroup: 'node-consumers', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.subscribe(topic, '*', async message => {
    const body = message.body.toString();
    if (body.includes('held')) {
      console.log('held', body);
      while (!released.has(body)) await once(changed, 'released');
    }
    const { reconsumeTimes, keys, tags, queueId, queueOffset } = message;
    console.log('got', body, reconsumeTimes, keys, tags, queueId, queueOffset);
    if (body.includes('refused') && !reconsumeTimes) throw new Error('later');
  });
  await consumer.ready();
  console.log('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [first, body] = line.split(' ');
    if (body) {
      released.add(body);
      changed.emit('released');
    } else {
      await send(first);
    }
  }
  await consumer.close();
  await producer.close();
}

main().then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});

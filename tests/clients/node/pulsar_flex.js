// A conversation of the npm client pulsar-flex with a broker: node pulsar_flex.js host:port
// Prints one JSON object; a step that does not end is ended by whoever started this.
const { Producer, Consumer } = require('pulsar-flex');

const server = process.argv[2];
const quiet = { logLevel: -1, logCreator: () => () => {} };
const topicOf = (name) => `persistent://public/default/flex-${name}`;

const consume = async (name, subType, count, options) => {
  const consumer = new Consumer({
    topic: topicOf(name), discoveryServers: [server], subscription: 'sub', subType, consumerName: 'flex',
    receiveQueueSize: 20, ...quiet,
  });
  await consumer.subscribe();
  await produce(name); // after it: this client never asks for the earliest message
  const got = [];
  await new Promise((resolve, reject) => {
    consumer.run({
      autoAck: false,
      onMessage: async ({ ack, message, properties, redeliveryCount }) => {
        const text = message.toString();
        if (options.nackOnce === text && redeliveryCount === 0) {
          await ack({ type: Consumer.ACK_TYPES.NEGATIVE });
          return;
        }
        got.push([text, properties.n, redeliveryCount]);
        if (options.cumulative) {
          if (got.length === count) await ack({ type: Consumer.ACK_TYPES.CUMULATIVE });
        } else {
          await ack(); // resolves with the broker's ACK_RESPONSE
        }
        if (got.length === count) resolve();
      },
    }).catch(reject);
  });
  return got;
};

const produce = async (name) => {
  const producer = new Producer({
    topic: topicOf(name), discoveryServers: [server], producerAccessMode: Producer.ACCESS_MODES.SHARED, ...quiet,
  });
  await producer.create();
  for (let n = 0; n < 30; n++) {
    await producer.sendMessage({ payload: `m${n}`, properties: { n: `${n}` } });
  }
  await producer.sendBatch({
    messages: [30, 31, 32].map((n) => ({ payload: `m${n}`, properties: { n: `${n}` } })),
  });
};

const main = async () => {
  const found = {};
  for (const [name, subType, options] of [
    ['exclusive', Consumer.SUB_TYPES.EXCLUSIVE, { cumulative: true }],
    ['failover', Consumer.SUB_TYPES.FAILOVER, {}],
    ['shared', Consumer.SUB_TYPES.SHARED, { nackOnce: 'm7' }],
    ['keyshared', Consumer.SUB_TYPES.KEY_SHARED, {}],
  ]) {
    found[name] = await consume(name, subType, 33, options);
  }
  console.log(JSON.stringify(found));
  process.exit(0);
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

// A conversation of the npm client pulsar-flex with a broker: node pulsar_flex.js host:port
// Prints one JSON object; a step that does not end is ended by whoever started this.
// With host:port,host:port and the name of a question it publishes and consumes while the test does what it asks for.
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

// shares has two consumers that ask for a message at a time wait for one batch, and returns how many each got.
const shares = async (name) => {
  const got = [0, 0];
  const topic = topicOf(name);
  for (const n of [0, 1]) {
    const consumer = new Consumer({
      topic, discoveryServers: [server], subscription: 'sub', subType: Consumer.SUB_TYPES.SHARED,
      consumerName: `flex-${n}`, receiveQueueSize: 1, ...quiet,
    });
    await consumer.subscribe();
    consumer.run({ autoAck: true, onMessage: async () => { got[n]++; } });
  }
  const producer = new Producer({
    topic, discoveryServers: [server], producerAccessMode: Producer.ACCESS_MODES.SHARED, ...quiet,
  });
  await producer.create();
  await producer.sendBatch({ messages: [...Array(20).keys()].map((n) => ({ payload: `m${n}`, properties: {} })) });
  for (let round = 0; round < 300 && got[0] + got[1] < 20; round++) await new Promise((done) => setTimeout(done, 100));
  return got.sort();
};

// ask has the test do something to the cluster, and waits until that is done.
const ask = (question) =>
  new Promise((resolve, reject) => {
    process.stdin.once('data', (line) => (JSON.parse(line).ok ? resolve() : reject(new Error(line.toString()))));
    console.log(JSON.stringify(question));
  });

const survive = async (servers, what) => {
  const topic = topicOf(what);
  const seen = new Set();
  const discoveryServers = servers.split(',');
  const consumer = new Consumer({
    topic, discoveryServers, subscription: 'sub', subType: Consumer.SUB_TYPES.SHARED, consumerName: 'flex',
    receiveQueueSize: 20, ...quiet,
  });
  await consumer.subscribe();
  consumer.run({ autoAck: true, onMessage: async ({ message }) => seen.add(message.toString()) });
  const producer = new Producer({
    topic, discoveryServers, producerAccessMode: Producer.ACCESS_MODES.SHARED, ...quiet,
  });
  await producer.create();
  for (let n = 0; n < 60; n++) {
    if (n === 20 || n === 40) await ask({ ask: what, topic, namespace: 'public/default' });
    await producer.sendMessage({ payload: `m${n}`, properties: {} });
  }
  for (let round = 0; round < 300 && seen.size < 60; round++) await new Promise((done) => setTimeout(done, 100));
  const missing = [...Array(60).keys()].filter((n) => !seen.has(`m${n}`));
  console.log(JSON.stringify({ scenario: what, ok: missing.length === 0, detail: `missing: ${missing}` }));
  process.exit(0);
};

const main = async () => {
  if (process.argv[3]) return survive(server, process.argv[3]);
  const found = {};
  for (const [name, subType, options] of [
    ['exclusive', Consumer.SUB_TYPES.EXCLUSIVE, { cumulative: true }],
    ['failover', Consumer.SUB_TYPES.FAILOVER, {}],
    ['shared', Consumer.SUB_TYPES.SHARED, { nackOnce: 'm7' }],
    ['keyshared', Consumer.SUB_TYPES.KEY_SHARED, {}],
  ]) {
    found[name] = await consume(name, subType, 33, options);
  }
  found.shares = await shares('shares');
  console.log(JSON.stringify(found));
  process.exit(0);
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

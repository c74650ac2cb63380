package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func acknowledging() []scenario {
	return []scenario{
		{name: "cumulative_ack", run: cumulativeAck},
		{name: "batch_index_ack", run: batchIndexAck},
		{name: "divided_batches", run: dividedBatches},
		{name: "refused_alone", run: refusedAlone},
		{name: "buried_alone", run: buriedAlone},
		{name: "keys_together", run: keysTogether},
		{name: "negative_ack", run: negativeAck},
	}
}

// cumulativeAck acknowledges to the middle of a batch; what comes after it is delivered again.
func cumulativeAck(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	options := pulsar.ConsumerOptions{AckWithResponse: true, EnableBatchIndexAcknowledgment: true}
	consumer, err := w.consumer(options)
	if err != nil {
		return err
	}
	if _, err := w.sendTogether(producer, messagesOf(numbered(40))); err != nil {
		return err
	}
	found, err := w.receive(consumer, 40)
	if err != nil {
		return err
	}
	if err := consumer.AckCumulative(found[24]); err != nil {
		return err
	}
	consumer.Close()
	if consumer, err = w.consumer(options); err != nil {
		return err
	}
	if err := w.receiveTexts(consumer, numbered(40)[25:]...); err != nil {
		return err
	}
	consumer.Close()
	shared, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	if err != nil {
		return err
	}
	defer shared.Close()
	if err := shared.AckIDCumulative(found[39].ID()); err == nil {
		return errors.New("a shared subscription took a cumulative acknowledgement")
	}
	return nil
}

// batchIndexAck acknowledges every second message of batches; the others come again, and only they.
func batchIndexAck(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, AckWithResponse: true, EnableBatchIndexAcknowledgment: true}
	consumer, err := w.consumer(options)
	if err != nil {
		return err
	}
	if _, err := w.sendTogether(producer, messagesOf(numbered(30))); err != nil {
		return err
	}
	found, err := w.receive(consumer, 30)
	if err != nil {
		return err
	}
	var ids []pulsar.MessageID
	var rest []string
	for n, message := range found {
		if n%2 == 0 {
			ids = append(ids, message.ID())
		} else {
			rest = append(rest, string(message.Payload()))
		}
	}
	if err := consumer.AckIDList(ids); err != nil {
		return err
	}
	consumer.Close()
	if consumer, err = w.consumer(options); err != nil {
		return err
	}
	defer consumer.Close()
	again, err := w.receive(consumer, len(rest))
	if err != nil {
		return err
	}
	if err := same(sorted(texts(again)), rest); err != nil {
		return err
	}
	for _, message := range again {
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	if err := w.quiet(consumer, 200*time.Millisecond); err != nil {
		return err
	}
	return w.backlog(w.topic(""), "sub", 0)
}

// parts are the options of a consumer that takes parts of batches.
func parts(kind pulsar.SubscriptionType, queue int) pulsar.ConsumerOptions {
	return pulsar.ConsumerOptions{
		Type: kind, EnableBatchIndexAcknowledgment: true, ReceiverQueueSize: queue,
		Properties:          map[string]string{"heliograph.takes-parts": "true"},
		NackRedeliveryDelay: 2 * time.Second,
	}
}

// shares has three consumers receive what is published next, and returns what each got. Each message comes once.
func (w *world) shares(options pulsar.ConsumerOptions, messages []*pulsar.ProducerMessage) ([][]pulsar.Message, error) {
	var consumers []pulsar.Consumer
	for range 3 {
		consumer, err := w.consumer(options)
		if err != nil {
			return nil, err
		}
		defer consumer.Close()
		consumers = append(consumers, consumer)
	}
	count := len(messages)
	producer, err := w.producer(pulsar.ProducerOptions{
		Topic: options.Topic, BatchingMaxMessages: uint(count), BatchingMaxPublishDelay: time.Hour,
	})
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if _, err := w.sendTogether(producer, messages); err != nil {
		return nil, err
	}
	var found []pulsar.Message
	shares := make([][]pulsar.Message, len(consumers))
	for idle := 0; len(found) < count && idle < 600 || len(found) >= count && idle < 20; idle++ {
		for at, consumer := range consumers {
			ctx, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond)
			message, err := consumer.Receive(ctx)
			cancel()
			if err != nil {
				continue
			}
			if err := consumer.Ack(message); err != nil {
				return nil, err
			}
			found = append(found, message)
			shares[at] = append(shares[at], message)
			idle = 0
		}
	}
	var sent []string
	for _, message := range messages {
		sent = append(sent, string(message.Payload))
	}
	return shares, same(sorted(texts(found)), sorted(sent))
}

// dividedBatches has three consumers share one batch, with a message at a time and with four.
func dividedBatches(w *world) error {
	for _, queue := range []int{1, 4} {
		options := parts(pulsar.Shared, queue)
		options.Topic = w.topic(fmt.Sprint(queue))
		shares, err := w.shares(options, messagesOf(numbered(60)))
		if err != nil {
			return err
		}
		for _, share := range shares {
			if len(share) < 10 {
				return fmt.Errorf("a consumer with a queue of %d got %d of 60 messages", queue, len(share))
			}
		}
		if err := w.eventually(func() error { return w.backlog(options.Topic, "sub", 0) }); err != nil {
			return err
		}
	}
	return nil
}

// refusedAlone refuses one of 300 messages of a batch: it comes once more, and no other one does.
func refusedAlone(w *world) error {
	consumer, err := w.consumer(parts(pulsar.Shared, 1000))
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 300, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.sendTogether(producer, messagesOf(numbered(300))); err != nil {
		return err
	}
	found, err := w.receive(consumer, 300)
	if err != nil {
		return err
	}
	for n, message := range found {
		if n == 137 {
			consumer.Nack(message)
		} else if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	again, err := w.receive(consumer, 1)
	if err != nil {
		return err
	}
	if err := same(texts(again), []string{"m137"}); err != nil {
		return err
	}
	if err := same(again[0].RedeliveryCount(), 1); err != nil {
		return err
	}
	if err := consumer.Ack(again[0]); err != nil {
		return err
	}
	return w.quiet(consumer, 3*time.Second)
}

// buriedAlone refuses one of 100 messages of a batch until it is a dead letter: no other one becomes one.
func buriedAlone(w *world) error {
	options := parts(pulsar.Shared, 1000)
	options.NackRedeliveryDelay = time.Second
	options.DLQ = &pulsar.DLQPolicy{
		MaxDeliveries: 3, DeadLetterTopic: w.topic("-dead"), InitialSubscriptionName: "kept",
	}
	consumer, err := w.consumer(options)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 100, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.sendTogether(producer, messagesOf(numbered(100))); err != nil {
		return err
	}
	for range 102 {
		found, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		if string(found[0].Payload()) == "m037" {
			consumer.Nack(found[0])
		} else if err := consumer.Ack(found[0]); err != nil {
			return err
		}
	}
	dead, err := w.consumer(pulsar.ConsumerOptions{Topic: w.topic("-dead"), SubscriptionName: "kept"})
	if err != nil {
		return err
	}
	defer dead.Close()
	return first(
		func() error { return w.quiet(consumer, 3*time.Second) },
		func() error { return w.receiveTexts(dead, "m037") },
		func() error { return w.quiet(dead, time.Second) },
	)
}

// keysTogether has the messages of a key reach one consumer, in order, though each batch has all keys.
func keysTogether(w *world) error {
	messages := messagesOf(numbered(120))
	for n, message := range messages {
		message.Key = fmt.Sprintf("k%d", n%10)
	}
	shares, err := w.shares(parts(pulsar.KeyShared, 4), messages)
	if err != nil {
		return err
	}
	homes, last := map[string]int{}, map[string]string{}
	for at, share := range shares {
		for _, message := range share {
			home, isKnown := homes[message.Key()]
			if isKnown && home != at || last[message.Key()] >= string(message.Payload()) {
				return fmt.Errorf("%s of %s came to %d after %s", message.Payload(), message.Key(), at, last[message.Key()])
			}
			homes[message.Key()], last[message.Key()] = at, string(message.Payload())
		}
	}
	return same(len(homes), 10)
}

// shortBackoff doubles the wait before each redelivery.
type shortBackoff struct{}

// Next returns the wait before a message's next delivery.
func (shortBackoff) Next(count uint32) time.Duration { return 200 * time.Millisecond << count }

// negativeAck has messages come again after a wait that grows, with a count of the deliveries.
func negativeAck(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	// One bit of precision would round the waits to a quarter of a second.
	bits := int64(4)
	consumer, err := w.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackBackoffPolicy: shortBackoff{}, NackPrecisionBit: &bits,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if _, err := w.send(producer, "a", "b"); err != nil {
		return err
	}
	times := map[string][]time.Time{}
	for range 6 {
		found, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		text := string(found[0].Payload())
		if err := same(found[0].RedeliveryCount(), len(times[text])); err != nil {
			return fmt.Errorf("deliveries of %s: %w", text, err)
		}
		times[text] = append(times[text], time.Now())
		if len(times[text]) < 3 {
			consumer.Nack(found[0])
		} else if err := consumer.Ack(found[0]); err != nil {
			return err
		}
	}
	for text, all := range times {
		if all[2].Sub(all[1]) <= 250*time.Millisecond {
			return fmt.Errorf("%s waited %s, then %s", text, all[1].Sub(all[0]), all[2].Sub(all[1]))
		}
	}
	return w.eventually(func() error { return w.backlog(w.topic(""), "sub", 0) })
}

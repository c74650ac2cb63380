package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func acknowledging() []scenario {
	return []scenario{
		{name: "cumulative_ack", run: cumulativeAck},
		{name: "batch_index_ack", run: batchIndexAck},
		{name: "divided_batches", run: dividedBatches},
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

// dividedBatches has three consumers, each of which takes a message at a time, share one batch: each message comes once.
func dividedBatches(w *world) error {
	options := pulsar.ConsumerOptions{
		Type: pulsar.Shared, AckWithResponse: true, EnableBatchIndexAcknowledgment: true, ReceiverQueueSize: 1,
		Properties: map[string]string{"heliograph.takes-parts": "true"},
	}
	var consumers []pulsar.Consumer
	for range 3 {
		consumer, err := w.consumer(options)
		if err != nil {
			return err
		}
		defer consumer.Close()
		consumers = append(consumers, consumer)
	}
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 24, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.sendTogether(producer, messagesOf(numbered(24))); err != nil {
		return err
	}
	var found []pulsar.Message
	shares := make([]int, len(consumers))
	for n := 0; n < 600 && len(found) < 24; n++ {
		at := n % len(consumers)
		ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
		message, err := consumers[at].Receive(ctx)
		cancel()
		if err != nil {
			continue
		}
		if err := consumers[at].Ack(message); err != nil {
			return err
		}
		found = append(found, message)
		shares[at]++
	}
	if slices.Min(shares) < 4 {
		return fmt.Errorf("the consumers got %v of the messages", shares)
	}
	if err := same(sorted(texts(found)), sorted(numbered(24))); err != nil {
		return err
	}
	return w.backlog(w.topic(""), "sub", 0)
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

package main

import (
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func retrying() []scenario {
	return []scenario{
		{name: "dead_letters", run: deadLetters},
		{name: "retry_topics", run: retryTopics},
	}
}

// deadLetters has what fails too often leave the topic for another, with and without a schema of the consumer.
func deadLetters(w *world) error {
	for suffix, schema := range map[string]pulsar.Schema{
		"-plain": nil, "-bytes": pulsar.NewBytesSchema(nil), "-string": pulsar.NewStringSchema(nil),
		"-json": pulsar.NewJSONSchema(userSchema, nil),
	} {
		if err := deadLettersWith(w, w.topic(suffix), schema); err != nil {
			return fmt.Errorf("%s: %w", suffix, err)
		}
	}
	return nil
}

func deadLettersWith(w *world, topic string, schema pulsar.Schema) error {
	dead, err := w.consumer(pulsar.ConsumerOptions{Topic: topic + "-dead", SubscriptionName: "undertaker"})
	if err != nil {
		return err
	}
	defer dead.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, Schema: schema, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead", InitialSubscriptionName: "first"},
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	if err != nil {
		return err
	}
	defer producer.Close()
	for n := range 4 {
		message := &pulsar.ProducerMessage{Key: fmt.Sprint("key-", n), Properties: map[string]string{"n": fmt.Sprint(n)}}
		switch schema.(type) {
		case *pulsar.JSONSchema:
			message.Value = user{Name: fmt.Sprint(n), Age: n}
		case *pulsar.StringSchema:
			message.Value = fmt.Sprint("m", n)
		default:
			message.Payload = fmt.Appendf(nil, "m%d", n)
		}
		if schema != nil && message.Value == nil {
			message.Value, message.Payload = message.Payload, nil
		}
		if _, err := producer.Send(w.ctx, message); err != nil {
			return err
		}
	}
	deliveries := 0
	for range 4 * 2 {
		found, err := w.receive(consumer, 1)
		if err != nil {
			return fmt.Errorf("after %d deliveries: %w", deliveries, err)
		}
		deliveries++
		consumer.Nack(found[0])
	}
	buried, err := w.receive(dead, 4)
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	for _, message := range buried {
		if message.Properties()["n"] == "" || message.Properties()["REAL_TOPIC"] != topic {
			return fmt.Errorf("a dead letter has the properties %v", message.Properties())
		}
		if err := dead.Ack(message); err != nil {
			return err
		}
	}
	if err := w.quiet(dead, 100*time.Millisecond); err != nil {
		return err
	}
	initial, err := w.consumer(pulsar.ConsumerOptions{Topic: topic + "-dead", SubscriptionName: "first"})
	if err != nil {
		return err
	}
	defer initial.Close()
	if _, err := w.receive(initial, 4); err != nil {
		return fmt.Errorf("the initial subscription of the dead letters: %w", err)
	}
	return w.eventually(func() error { return w.backlog(topic, "sub", 0) })
}

// retryTopics puts messages off, which come back by the retry topic and end as dead letters. Two topics with one
// subscription name keep their messages apart.
func retryTopics(w *world) error {
	for _, suffix := range []string{"-a", "-b"} {
		if err := w.retriesOf(w.topic(suffix)); err != nil {
			return fmt.Errorf("%s: %w", suffix, err)
		}
	}
	return nil
}

func (w *world) retriesOf(topic string) error {
	consumer, err := w.consumer(pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2},
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	dead, err := w.consumer(pulsar.ConsumerOptions{Topic: topic + "-sub-DLQ", SubscriptionName: "undertaker"})
	if err != nil {
		return err
	}
	defer dead.Close()
	producer, err := w.producer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, topic+"-1", topic+"-2"); err != nil {
		return err
	}
	for round := range 3 {
		found, err := w.receive(consumer, 2)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := same(sorted(texts(found)), []string{topic + "-1", topic + "-2"}); err != nil {
			return err
		}
		for _, message := range found {
			if round > 0 && message.Properties()["RECONSUMETIMES"] != fmt.Sprint(round) {
				return fmt.Errorf("round %d has the properties %v", round, message.Properties())
			}
			consumer.ReconsumeLaterWithCustomProperties(message, map[string]string{"why": "test"}, 300*time.Millisecond)
		}
	}
	buried, err := w.receive(dead, 2)
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	if err := same(sorted(texts(buried)), []string{topic + "-1", topic + "-2"}); err != nil {
		return err
	}
	return same(buried[0].Properties()["why"], "test")
}

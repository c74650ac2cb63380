package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const receiveSeconds = 60

// scenarios returns all scenarios, in the order in which they begin.
func scenarios() []scenario {
	var all []scenario
	for _, group := range [][]scenario{
		retrying(), publishing(), subscribing(), acknowledging(), reading(), schemas(), partitions(),
		administration(), policies(), surviving(), security(),
	} {
		all = append(all, group...)
	}
	return all
}

// topic returns the full name of a topic of this scenario's own.
func (w *world) topic(suffix string) string {
	return "persistent://public/default/go-" + w.name + suffix
}

// producer opens a producer; the topic is the scenario's own unless the options name one.
func (w *world) producer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	if options.Topic == "" {
		options.Topic = w.topic("")
	}
	return w.client.CreateProducer(options)
}

// consumer opens a consumer from the first message on; topic and subscription have defaults.
func (w *world) consumer(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.Topics == nil && options.TopicsPattern == "" {
		options.Topic = w.topic("")
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "sub"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return w.client.Subscribe(options)
}

// send publishes texts one by one and returns their ids.
func (w *world) send(producer pulsar.Producer, texts ...string) ([]pulsar.MessageID, error) {
	var ids []pulsar.MessageID
	for _, text := range texts {
		id, err := producer.Send(w.ctx, &pulsar.ProducerMessage{Payload: []byte(text)})
		if err != nil {
			return nil, fmt.Errorf("publishing %s: %w", text, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// sendTogether publishes messages without waiting between them, then waits for all receipts.
func (w *world) sendTogether(producer pulsar.Producer, messages []*pulsar.ProducerMessage) ([]pulsar.MessageID, error) {
	type receipt struct {
		n   int
		id  pulsar.MessageID
		err error
	}
	receipts := make(chan receipt, len(messages))
	for n, message := range messages {
		producer.SendAsync(w.ctx, message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			receipts <- receipt{n, id, err}
		})
	}
	if err := producer.FlushWithCtx(w.ctx); err != nil {
		return nil, err
	}
	ids := make([]pulsar.MessageID, len(messages))
	for range messages {
		select {
		case found := <-receipts:
			if found.err != nil {
				return nil, found.err
			}
			ids[found.n] = found.id
		case <-w.ctx.Done():
			return nil, errors.New("a receipt is missing")
		}
	}
	return ids, nil
}

// receive returns the next messages, not acknowledged.
func (w *world) receive(consumer pulsar.Consumer, count int) ([]pulsar.Message, error) {
	ctx, cancel := context.WithTimeout(w.ctx, receiveSeconds*time.Second)
	defer cancel()
	var found []pulsar.Message
	for range count {
		message, err := consumer.Receive(ctx)
		if err != nil {
			return nil, fmt.Errorf("%d of %d messages came: %v: %w", len(found), count, texts(found), err)
		}
		found = append(found, message)
	}
	return found, nil
}

// receiveTexts receives and acknowledges messages and compares their payloads, in order.
func (w *world) receiveTexts(consumer pulsar.Consumer, expected ...string) error {
	found, err := w.receive(consumer, len(expected))
	if err != nil {
		return err
	}
	for _, message := range found {
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return same(texts(found), expected)
}

// quiet checks that nothing comes for a while.
func (w *world) quiet(consumer pulsar.Consumer, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(w.ctx, wait)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err == nil {
		return fmt.Errorf("nothing was expected, and %q came", message.Payload())
	}
	return nil
}

func texts(messages []pulsar.Message) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Payload()))
	}
	return found
}

func numbered(count int) []string {
	found := []string{}
	for n := range count {
		found = append(found, fmt.Sprintf("m%03d", n))
	}
	return found
}

func messagesOf(payloads []string) []*pulsar.ProducerMessage {
	var found []*pulsar.ProducerMessage
	for _, text := range payloads {
		found = append(found, &pulsar.ProducerMessage{Payload: []byte(text)})
	}
	return found
}

func sorted(values []string) []string {
	found := append([]string{}, values...)
	sort.Strings(found)
	return found
}

// same compares two values by their printed form.
func same(found, expected any) error {
	if a, b := fmt.Sprintf("%+v", found), fmt.Sprintf("%+v", expected); a != b {
		return fmt.Errorf("found %s, expected %s", a, b)
	}
	return nil
}

// refusal checks that a call failed with a text and passes it on as the scenario's result.
func refusal(err error, words ...string) error {
	if err == nil {
		return errors.New("it was not refused")
	}
	for _, word := range words {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(word)) {
			return fmt.Errorf("the refusal does not say %q: %s", word, err.Error())
		}
	}
	return fmt.Errorf("%w: %s", errRefused, err.Error())
}

// eventually repeats a check until it succeeds.
func (w *world) eventually(check func() error) error {
	deadline := time.Now().Add(receiveSeconds * time.Second)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) || w.ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// first returns the first error of several steps.
func first(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func subscribing() []scenario {
	return []scenario{
		{name: "exclusive", run: exclusive},
		{name: "shared", run: shared},
		{name: "failover", run: failover},
		{name: "key_shared", run: keyShared},
	}
}

// exclusive refuses a second consumer, and lets it in once the first has gone.
func exclusive(w *world) error {
	one, err := w.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	never := uint(0)
	options := pulsar.ConsumerOptions{MaxReconnectToBroker: &never}
	if second, err := w.consumer(options); err == nil {
		second.Close()
		return errors.New("an exclusive subscription took a second consumer")
	}
	one.Close()
	second, err := w.consumer(options)
	if err != nil {
		return err
	}
	return second.Unsubscribe()
}

// shared gives each message to one of three consumers; those of one that goes come to the others.
func shared(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	var consumers []pulsar.Consumer
	for n := range 3 {
		consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 10, Name: fmt.Sprint("c", n)})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	if _, err := w.sendTogether(producer, messagesOf(numbered(90))); err != nil {
		return err
	}
	if _, err := w.receive(consumers[2], 5); err != nil {
		return err // taken, but not acknowledged
	}
	consumers[2].Close()
	found, err := w.gather(consumers[:2], 90)
	if err != nil {
		return err
	}
	total := append(texts(found[0]), texts(found[1])...)
	if len(found[0]) == 0 || len(found[1]) == 0 {
		return errors.New("one of the consumers got nothing")
	}
	if err := same(sorted(total), numbered(90)); err != nil {
		return err
	}
	closeAll(consumers[:2])
	return w.eventually(func() error { return w.backlog(w.topic(""), "sub", 0) })
}

// changes notes which consumer is told that it is active.
type changes struct {
	lock  sync.Mutex
	heard []string
}

func (c *changes) note(text string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.heard = append(c.heard, text)
}

// last returns what it was told last, or nothing.
func (c *changes) last() string {
	c.lock.Lock()
	defer c.lock.Unlock()
	if len(c.heard) == 0 {
		return ""
	}
	return c.heard[len(c.heard)-1]
}

// BecameActive is called by the client.
func (c *changes) BecameActive(pulsar.Consumer, string, int32) { c.note("active") }

// BecameInactive is called by the client.
func (c *changes) BecameInactive(pulsar.Consumer, string, int32) { c.note("inactive") }

// failover tells each consumer whether it is the active one, and changes over when it goes.
func failover(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	var heard [2]changes
	var consumers []pulsar.Consumer
	for n := range heard {
		consumer, err := w.consumer(pulsar.ConsumerOptions{
			Type: pulsar.Failover, Name: fmt.Sprint("c", n), EventListener: &heard[n], AckWithResponse: true,
		})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	if err := w.eventually(func() error {
		return same(sorted([]string{heard[0].last(), heard[1].last()}), []string{"active", "inactive"})
	}); err != nil {
		return fmt.Errorf("two consumers hear: %w", err)
	}
	active, other := 0, 1 // which of them is chosen by their names
	if heard[1].last() == "active" {
		active, other = 1, 0
	}
	if _, err := w.send(producer, numbered(10)...); err != nil {
		return err
	}
	if err := w.receiveTexts(consumers[active], numbered(10)...); err != nil {
		return err
	}
	if err := w.quiet(consumers[other], 200*time.Millisecond); err != nil {
		return err
	}
	consumers[active].Close()
	if err := w.eventually(func() error { return same(heard[other].last(), "active") }); err != nil {
		return fmt.Errorf("the one that stays hears: %w", err)
	}
	if _, err := w.send(producer, "m010"); err != nil {
		return err
	}
	if err := w.receiveTexts(consumers[other], "m010"); err != nil {
		return err
	}
	consumers[other].Close()
	return nil
}

// keyShared keeps each key with one consumer, in order, also by chosen ranges of the hash.
func keyShared(w *world) error {
	low, err := pulsar.NewKeySharedPolicySticky([]int{0, 32767})
	if err != nil {
		return err
	}
	high, err := pulsar.NewKeySharedPolicySticky([]int{32768, 65535})
	if err != nil {
		return err
	}
	split := &pulsar.KeySharedPolicy{Mode: pulsar.KeySharedPolicyModeAutoSplit}
	for suffix, chosen := range map[string][2]*pulsar.KeySharedPolicy{"-auto": {split, split}, "-sticky": {low, high}} {
		if err := keySharedWith(w, w.topic(suffix), chosen); err != nil {
			return fmt.Errorf("%s: %w", suffix, err)
		}
	}
	return nil
}

func keySharedWith(w *world, topic string, chosen [2]*pulsar.KeySharedPolicy) error {
	producer, err := w.producer(pulsar.ProducerOptions{Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	if err != nil {
		return err
	}
	defer producer.Close()
	var consumers []pulsar.Consumer
	for _, policy := range chosen {
		consumer, err := w.consumer(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared, KeySharedPolicy: policy})
		if err != nil {
			return err
		}
		consumers = append(consumers, consumer)
	}
	defer closeAll(consumers)
	messages := messagesOf(numbered(200))
	for n, message := range messages {
		message.Key = fmt.Sprint("key-", n%20)
	}
	if _, err := w.sendTogether(producer, messages); err != nil {
		return err
	}
	found, err := w.gather(consumers, 200)
	if err != nil {
		return err
	}
	owners, last := map[string]int{}, map[string]string{}
	for who, part := range found {
		if len(part) == 0 {
			return errors.New("one of the consumers got nothing")
		}
		for _, message := range part {
			if owner, isKnown := owners[message.Key()]; isKnown && owner != who {
				return fmt.Errorf("%s came to two consumers", message.Key())
			}
			owners[message.Key()] = who
			if text := string(message.Payload()); text <= last[message.Key()] {
				return fmt.Errorf("%s: %s came after %s", message.Key(), text, last[message.Key()])
			}
			last[message.Key()] = string(message.Payload())
		}
	}
	return same(len(owners), 20)
}

// gather receives and acknowledges with several consumers until all messages of the group have come.
func (w *world) gather(consumers []pulsar.Consumer, count int) ([][]pulsar.Message, error) {
	ctx, cancel := context.WithTimeout(w.ctx, receiveSeconds*time.Second)
	defer cancel()
	found := make([][]pulsar.Message, len(consumers))
	var lock sync.Mutex
	var all sync.WaitGroup
	total := 0
	for n, consumer := range consumers {
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				message, err := consumer.Receive(ctx)
				if err != nil {
					return
				}
				_ = consumer.Ack(message)
				lock.Lock()
				found[n] = append(found[n], message)
				total++
				if total >= count {
					cancel()
				}
				lock.Unlock()
			}
		}()
	}
	all.Wait()
	if total < count {
		return nil, fmt.Errorf("%d of %d messages came", total, count)
	}
	return found, nil
}

func closeAll(consumers []pulsar.Consumer) {
	for _, consumer := range consumers {
		consumer.Close()
	}
}

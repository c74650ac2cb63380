package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func surviving() []scenario {
	return []scenario{
		{name: "unload", isAlone: true, run: func(w *world) error {
			return survive(w, "unload", map[string]string{"namespace": "public/default"})
		}},
		{name: "entry_metadata", isAlone: true, run: entryMetadata},
		{name: "redirect", isAlone: true, run: func(w *world) error {
			return survive(w, "move", map[string]string{"topic": w.topic("")})
		}},
		{name: "broker_death", isAlone: true, run: func(w *world) error {
			return survive(w, "crash_owner", map[string]string{"topic": w.topic("")})
		}},
	}
}

// entryMetadata finds messages numbered without gaps, with the broker's time, also after the owner of the topic died.
func entryMetadata(w *world) error {
	begun := time.Now().Add(-time.Second)
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 4, BatchingMaxPublishDelay: time.Second})
	if err != nil {
		return err
	}
	defer producer.Close()
	for round := range 2 {
		if _, err := w.sendTogether(producer, messagesOf(numbered(10))); err != nil {
			return err
		}
		if round == 0 {
			if _, err := ask("crash_owner", map[string]string{"topic": w.topic("")}); err != nil {
				return err
			}
		}
	}
	reader, err := w.client.CreateReader(
		pulsar.ReaderOptions{Topic: w.topic(""), StartMessageID: pulsar.EarliestMessageID()},
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	for expected := range uint64(20) {
		message, err := reader.Next(w.ctx)
		if err != nil {
			return err
		}
		index, when := message.Index(), message.BrokerPublishTime()
		if index == nil || when == nil {
			return errors.New("the broker noted nothing")
		}
		if *index != expected || when.Before(begun) || when.After(time.Now().Add(time.Second)) {
			return fmt.Errorf("message %d has the index %d and the time %v", expected, *index, *when)
		}
	}
	return nil
}

// survive publishes and consumes while something happens to the topic, twice. No call may fail, every message that was
// confirmed arrives, and those of one producer in their order.
func survive(w *world, what string, arguments map[string]string) error {
	producer, err := w.producer(pulsar.ProducerOptions{SendTimeout: -1})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, AckWithResponse: false})
	if err != nil {
		return err
	}
	defer consumer.Close()
	reading, stopReading := context.WithCancel(w.ctx)
	defer stopReading()
	seen := newSeen()
	go seen.read(reading, consumer)

	publishing, stopPublishing := context.WithCancel(w.ctx)
	sent := make(chan publishedCount, 1)
	go func() { sent <- publish(publishing, w.ctx, producer) }()
	for range 2 {
		time.Sleep(700 * time.Millisecond)
		if _, err := ask(what, arguments); err != nil {
			stopPublishing()
			return err
		}
	}
	time.Sleep(700 * time.Millisecond)
	stopPublishing()
	found := <-sent
	if found.err != nil {
		return found.err
	}
	if found.count < 50 {
		return fmt.Errorf("only %d messages were published", found.count)
	}
	return w.eventually(func() error { return seen.check(found.count) })
}

type publishedCount struct {
	count int
	err   error
}

// publish sends numbered messages until it is told to stop, and waits for every receipt.
func publish(until, limit context.Context, producer pulsar.Producer) publishedCount {
	var all sync.WaitGroup
	var lock sync.Mutex
	var failure error
	count := 0
	for until.Err() == nil {
		all.Add(1)
		producer.SendAsync(limit, &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%d", count)},
			func(_ pulsar.MessageID, message *pulsar.ProducerMessage, err error) {
				defer all.Done()
				if err != nil {
					lock.Lock()
					defer lock.Unlock()
					failure = fmt.Errorf("publishing %s: %w", message.Payload, err)
				}
			})
		count++
		time.Sleep(3 * time.Millisecond)
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-limit.Done():
		return publishedCount{count, errors.New("receipts are missing")}
	}
	lock.Lock()
	defer lock.Unlock()
	return publishedCount{count, failure}
}

// seen holds the numbers that came, and the first that came before a smaller one for the first time.
type seen struct {
	lock    sync.Mutex
	numbers map[int]bool
	highest int
	late    []int
}

func newSeen() *seen { return &seen{numbers: map[int]bool{}, highest: -1} }

func (s *seen) read(ctx context.Context, consumer pulsar.Consumer) {
	for {
		message, err := consumer.Receive(ctx)
		if err != nil {
			return
		}
		var number int
		if _, err := fmt.Sscan(string(message.Payload()), &number); err != nil {
			return
		}
		_ = consumer.Ack(message)
		s.lock.Lock()
		if !s.numbers[number] && number < s.highest {
			s.late = append(s.late, number)
		}
		s.numbers[number] = true
		s.highest = max(s.highest, number)
		s.lock.Unlock()
	}
}

func (s *seen) check(count int) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	for number := range count {
		if !s.numbers[number] {
			return fmt.Errorf("message %d of %d is missing", number, count)
		}
	}
	if len(s.late) > 0 {
		return fmt.Errorf("messages came after later ones: %v", s.late)
	}
	return nil
}

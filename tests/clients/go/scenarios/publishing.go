package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func publishing() []scenario {
	all := []scenario{
		{name: "produce_consume", run: produceConsume},
		{name: "batching", run: batching},
		{name: "chunking", run: chunking},
		{name: "delayed", run: delayed},
		{name: "deduplication", run: deduplication},
		{name: "access_modes", run: accessModes},
		{name: "transactions", run: transactions},
	}
	for name, codec := range map[string]pulsar.CompressionType{
		"codec_lz4": pulsar.LZ4, "codec_zlib": pulsar.ZLib, "codec_zstd": pulsar.ZSTD, "codec_snappy": pulsar.SNAPPY,
	} {
		all = append(all, scenario{name: name, run: func(w *world) error { return compressed(w, codec) }})
	}
	return all
}

// produceConsume publishes one by one and without waiting, and checks everything that a message carries.
func produceConsume(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{Name: "go-own-name", DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return err
	}
	defer consumer.Close()
	when := time.UnixMilli(1_700_000_000_123)
	id, err := producer.Send(w.ctx, &pulsar.ProducerMessage{
		Payload: []byte("hello"), Key: "k", OrderingKey: "o", Properties: map[string]string{"a": "1", "b": "zwei"},
		EventTime: when,
	})
	if err != nil {
		return err
	}
	found, err := w.receive(consumer, 1)
	if err != nil {
		return err
	}
	message := found[0]
	if err := same(
		[]any{string(message.Payload()), message.Key(), message.OrderingKey(), message.Properties(), message.EventTime().UnixMilli(),
			message.ProducerName(), message.Topic(), message.RedeliveryCount(), message.ID().EntryID()},
		[]any{"hello", "k", "o", map[string]string{"a": "1", "b": "zwei"}, when.UnixMilli(), "go-own-name", w.topic(""), 0, id.EntryID()},
	); err != nil {
		return err
	}
	if age := time.Since(message.PublishTime()); age < -time.Second || age > time.Minute {
		return fmt.Errorf("published %s ago", age)
	}
	if err := consumer.Ack(message); err != nil {
		return err
	}
	if _, err := w.sendTogether(producer, messagesOf(numbered(500))); err != nil {
		return err
	}
	if err := w.receiveTexts(consumer, numbered(500)...); err != nil {
		return err
	}
	empty := &pulsar.ProducerMessage{Payload: []byte{}, Properties: map[string]string{"only": "this"}}
	if _, err := producer.Send(w.ctx, empty); err != nil {
		return err
	}
	return w.receiveTexts(consumer, "")
}

// batching fills batches and receives them whole and in order.
func batching(w *world) error {
	for kind, builder := range map[string]pulsar.BatcherBuilderType{
		"-plain": pulsar.DefaultBatchBuilder, "-by-key": pulsar.KeyBasedBatchBuilder,
	} {
		producer, err := w.producer(pulsar.ProducerOptions{
			Topic: w.topic(kind), BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Hour, BatcherBuilderType: builder,
		})
		if err != nil {
			return err
		}
		defer producer.Close()
		consumer, err := w.consumer(pulsar.ConsumerOptions{Topic: w.topic(kind)})
		if err != nil {
			return err
		}
		defer consumer.Close()
		messages := messagesOf(numbered(95))
		for n, message := range messages {
			message.Key = fmt.Sprint(n % 2)
		}
		if _, err := w.sendTogether(producer, messages); err != nil {
			return err
		}
		found, err := w.receive(consumer, 95)
		if err != nil {
			return err
		}
		if err := same(sorted(texts(found)), numbered(95)); err != nil {
			return err
		}
		if found[0].ID().BatchSize() < 2 {
			return errors.New("no batch was made")
		}
	}
	return nil
}

// compressed publishes batches, single messages and one that does not shrink.
func compressed(w *world, codec pulsar.CompressionType) error {
	noise := make([]byte, 10_000)
	rand.New(rand.NewSource(7)).Read(noise)
	payloads := [][]byte{[]byte(strings.Repeat("compress me ", 2_000)), noise, []byte("x")}
	consumer, err := w.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer consumer.Close()
	for _, isSingle := range []bool{true, false} {
		producer, err := w.producer(pulsar.ProducerOptions{CompressionType: codec, DisableBatching: isSingle})
		if err != nil {
			return err
		}
		defer producer.Close()
		var messages []*pulsar.ProducerMessage
		for _, payload := range payloads {
			messages = append(messages, &pulsar.ProducerMessage{Payload: payload})
		}
		if _, err := w.sendTogether(producer, messages); err != nil {
			return err
		}
		found, err := w.receive(consumer, len(payloads))
		if err != nil {
			return err
		}
		for n, message := range found {
			if !bytes.Equal(message.Payload(), payloads[n]) {
				return fmt.Errorf("payload %d differs", n)
			}
		}
	}
	return nil
}

// chunking sends a message several times as large as the broker takes in one piece.
func chunking(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{
		DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 50_000, CompressionType: pulsar.LZ4,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{NackRedeliveryDelay: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	defer consumer.Close()
	noise := make([]byte, 1_200_000)
	rand.New(rand.NewSource(11)).Read(noise)
	for range 2 {
		if _, err := producer.Send(w.ctx, &pulsar.ProducerMessage{Payload: noise}); err != nil {
			return err
		}
	}
	for round := range 3 {
		found, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		if !bytes.Equal(found[0].Payload(), noise) {
			return errors.New("the message differs from the one that was published")
		}
		if round == 0 {
			consumer.Nack(found[0]) // all its pieces come again
			continue
		}
		if err := consumer.Ack(found[0]); err != nil {
			return err
		}
	}
	return w.eventually(func() error { return w.backlog(w.topic(""), "sub", 0) })
}

// delayed receives nothing before it is due, though it was published before what is due.
func delayed(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	if err != nil {
		return err
	}
	defer consumer.Close()
	begun := time.Now()
	due := map[string]time.Time{"late": begun.Add(4 * time.Second), "sooner": begun.Add(2 * time.Second), "now": begun}
	for _, message := range []*pulsar.ProducerMessage{
		{Payload: []byte("late"), DeliverAfter: 4 * time.Second},
		{Payload: []byte("sooner"), DeliverAt: due["sooner"]},
		{Payload: []byte("now")},
	} {
		if _, err := producer.Send(w.ctx, message); err != nil {
			return err
		}
	}
	var found []string
	for range due {
		messages, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		text := string(messages[0].Payload())
		if early := time.Until(due[text]); early > 50*time.Millisecond {
			return fmt.Errorf("%s came %s too early", text, early)
		}
		found = append(found, text)
		if err := consumer.Ack(messages[0]); err != nil {
			return err
		}
	}
	return same(sorted(found), []string{"late", "now", "sooner"})
}

// deduplication sends a sequence id twice; the namespace keeps one message.
func deduplication(w *world) error {
	namespace := "public/go-dedup"
	if err := first(
		func() error { return w.admin.Namespaces().CreateNamespace(namespace) },
		func() error { return w.admin.Namespaces().SetDeduplicationStatus(namespace, true) },
	); err != nil {
		return err
	}
	topic := "persistent://" + namespace + "/numbers"
	options := pulsar.ProducerOptions{Topic: topic, Name: "numbering", DisableBatching: true}
	consumer, err := w.consumer(pulsar.ConsumerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer consumer.Close()
	name, err := utils.GetTopicName(topic)
	if err != nil {
		return err
	}
	if err := w.eventually(func() error {
		stats, err := w.admin.Topics().GetStats(*name)
		if err != nil {
			return err
		}
		return same(stats.DeDuplicationStatus, "Enabled")
	}); err != nil {
		return err
	}
	for _, part := range [][]int64{{0, 1, 2}, {1, 2, 3, 4}, {4, 5}} {
		producer, err := w.producer(options)
		if err != nil {
			return err
		}
		for _, n := range part {
			message := &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "m%03d", n), SequenceID: &n}
			if _, err := producer.Send(w.ctx, message); err != nil {
				return err
			}
		}
		if err := same(producer.LastSequenceID(), part[len(part)-1]); err != nil {
			return fmt.Errorf("last sequence id: %w", err)
		}
		producer.Close()
	}
	if err := w.receiveTexts(consumer, numbered(6)...); err != nil {
		return err
	}
	return w.quiet(consumer, 300*time.Millisecond)
}

// accessModes has one exclusive producer fence others off, and one that waits take over.
func accessModes(w *world) error {
	exclusive, err := w.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	if err != nil {
		return err
	}
	if _, err := w.send(exclusive, "m000"); err != nil {
		return err
	}
	if _, err := w.producer(pulsar.ProducerOptions{}); err == nil {
		return errors.New("a shared producer opened beside an exclusive one")
	}
	if _, err := w.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive}); err == nil {
		return errors.New("two exclusive producers opened")
	} else if !strings.Contains(err.Error(), "ProducerFenced") && !strings.Contains(err.Error(), "ProducerBusy") {
		return fmt.Errorf("the second exclusive producer is told: %w", err)
	}
	type opened struct {
		producer pulsar.Producer
		err      error
	}
	waiting := make(chan opened, 1)
	go func() {
		producer, err := w.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
		waiting <- opened{producer, err}
	}()
	select {
	case found := <-waiting:
		return fmt.Errorf("a waiting producer did not wait: %v", found.err)
	case <-time.After(500 * time.Millisecond):
	}
	exclusive.Close()
	found := <-waiting
	if found.err != nil {
		return found.err
	}
	defer found.producer.Close()
	_, err = w.send(found.producer, "m001")
	return err
}

// transactions are not offered; a user learns it where he opens the client.
func transactions(w *world) error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: w.service, EnableTransaction: true, OperationTimeout: 5 * time.Second,
	})
	if err == nil {
		_, err = client.NewTransaction(time.Minute)
		client.Close()
	}
	return refusal(err, "transaction")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func reading() []scenario {
	return []scenario{
		{name: "reader", run: reader},
		{name: "seek_id", run: seekID},
		{name: "seek_time", run: seekTime},
		{name: "table_view", run: tableView},
		{name: "compaction", run: compaction},
	}
}

// readAll reads until the reader says that there is nothing more.
func (w *world) readAll(reader pulsar.Reader) ([]string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, receiveSeconds*time.Second)
	defer cancel()
	found := []string{}
	for reader.HasNext() {
		message, err := reader.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("after %v: %w", found, err)
		}
		found = append(found, string(message.Payload()))
	}
	return found, nil
}

// reader starts at the first message, after one, at one, and at the end.
func reader(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{BatchingMaxMessages: 5, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := w.sendTogether(producer, messagesOf(numbered(20)))
	if err != nil {
		return err
	}
	all := numbered(20)
	last, err := pulsar.DeserializeMessageID(ids[19].Serialize())
	if err != nil {
		return err
	}
	for _, one := range []struct {
		options  pulsar.ReaderOptions
		expected []string
	}{
		{pulsar.ReaderOptions{StartMessageID: pulsar.EarliestMessageID()}, all},
		{pulsar.ReaderOptions{StartMessageID: ids[7]}, all[8:]},
		{pulsar.ReaderOptions{StartMessageID: ids[7], StartMessageIDInclusive: true}, all[7:]},
		{pulsar.ReaderOptions{StartMessageID: last, StartMessageIDInclusive: true}, all[19:]},
		{pulsar.ReaderOptions{StartMessageID: pulsar.LatestMessageID()}, []string{}},
	} {
		one.options.Topic = w.topic("")
		reader, err := w.client.CreateReader(one.options)
		if err != nil {
			return err
		}
		found, err := w.readAll(reader)
		if err == nil {
			err = same(found, one.expected)
		}
		reader.Close()
		if err != nil {
			return fmt.Errorf("from %v: %w", one.options.StartMessageID, err)
		}
	}
	reader, err := w.client.CreateReader(pulsar.ReaderOptions{Topic: w.topic(""), StartMessageID: pulsar.LatestMessageID()})
	if err != nil {
		return err
	}
	defer reader.Close()
	if _, err := w.sendTogether(producer, messagesOf([]string{"new"})); err != nil {
		return err
	}
	message, err := reader.Next(w.ctx)
	if err != nil {
		return err
	}
	if err := same(string(message.Payload()), "new"); err != nil {
		return err
	}
	if err := reader.Seek(ids[17]); err != nil {
		return err
	}
	found, err := w.readAll(reader)
	if err != nil {
		return err
	}
	if err := same(found, []string{"m018", "m019", "new"}); err != nil {
		return fmt.Errorf("after the seek: %w", err)
	}
	id, err := reader.GetLastMessageID()
	if err != nil {
		return err
	}
	if id.EntryID() <= ids[19].EntryID() {
		return fmt.Errorf("the last id is %v", id)
	}
	return nil
}

// seekID goes back to a message, to the first one and to the end.
func seekID(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := w.send(producer, numbered(10)...)
	if err != nil {
		return err
	}
	consumer, err := w.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer consumer.Close()
	inclusive, err := w.consumer(pulsar.ConsumerOptions{SubscriptionName: "inclusive", StartMessageIDInclusive: true})
	if err != nil {
		return err
	}
	defer inclusive.Close()
	all := numbered(10)
	// A consumer of this client seeks by ids that name its one partition.
	earliest, latest := pulsar.NewMessageID(-1, -1, -1, 0), pulsar.NewMessageID(math.MaxInt64, math.MaxInt64, -1, 0)
	return first(
		func() error { return w.receiveTexts(inclusive, all...) },
		func() error { return inclusive.Seek(ids[6]) },
		func() error { return w.receiveTexts(inclusive, all[6:]...) },
		func() error { return w.receiveTexts(consumer, all...) },
		func() error { return consumer.Seek(ids[6]) }, // the message that is named does not come
		func() error { return w.receiveTexts(consumer, all[7:]...) },
		func() error { return consumer.Seek(earliest) },
		func() error { return w.receiveTexts(consumer, all...) },
		func() error { return consumer.Seek(earliest) },
		func() error { return consumer.Seek(latest) },
		func() error { return w.quiet(consumer, 300*time.Millisecond) },
	)
}

// seekTime goes back to a moment between two messages.
func seekTime(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, numbered(5)...); err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond)
	between := time.Now()
	time.Sleep(50 * time.Millisecond)
	if _, err := w.send(producer, numbered(10)[5:]...); err != nil {
		return err
	}
	consumer, err := w.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer consumer.Close()
	all := numbered(10)
	return first(
		func() error { return w.receiveTexts(consumer, all...) },
		func() error { return consumer.SeekByTime(between) },
		func() error { return w.receiveTexts(consumer, all[5:]...) },
		func() error { return consumer.SeekByTime(between.Add(-time.Hour)) },
		func() error { return w.receiveTexts(consumer, all...) },
	)
}

// tableView shows the newest value of each key and hears of new ones; a null payload takes a key out.
func tableView(w *world) error {
	topic := w.topic("")
	if err := w.createPartitioned(topic, 3); err != nil {
		return err
	}
	schema := pulsar.NewStringSchema(nil)
	producer, err := w.producer(pulsar.ProducerOptions{Schema: schema})
	if err != nil {
		return err
	}
	defer producer.Close()
	put := func(key, value string) error {
		_, err := producer.Send(w.ctx, &pulsar.ProducerMessage{Key: key, Value: value})
		return err
	}
	for n := range 20 {
		if err := put(fmt.Sprint("key-", n%5), fmt.Sprint("value-", n)); err != nil {
			return err
		}
	}
	var text *string
	view, err := w.client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: schema, SchemaValueType: reflect.TypeOf(text),
	})
	if err != nil {
		return err
	}
	defer view.Close()
	shown := func(key string) string {
		value, isText := view.Get(key).(*string)
		if !isText || value == nil {
			return ""
		}
		return *value
	}
	if err := first(
		func() error { return same(view.Size(), 5) },
		func() error { return same([]string{shown("key-0"), shown("key-4")}, []string{"value-15", "value-19"}) },
	); err != nil {
		return err
	}
	var lock sync.Mutex
	heard := map[string]bool{}
	if err := view.ForEachAndListen(func(key string, _ any) error {
		lock.Lock()
		defer lock.Unlock()
		heard[key] = true
		return nil
	}); err != nil {
		return err
	}
	if err := put("new", "fresh"); err != nil {
		return err
	}
	return w.eventually(func() error {
		lock.Lock()
		defer lock.Unlock()
		if !heard["new"] || !heard["key-1"] {
			return fmt.Errorf("the listener heard of %v", heard)
		}
		return same(shown("new"), "fresh")
	})
}

// compaction leaves the newest message of each key; a null payload, which deletes its key, is kept for a day.
func compaction(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{CompressionType: pulsar.LZ4, BatchingMaxPublishDelay: time.Hour})
	if err != nil {
		return err
	}
	defer producer.Close()
	var messages []*pulsar.ProducerMessage
	for n := range 30 {
		messages = append(messages, &pulsar.ProducerMessage{Key: fmt.Sprint("key-", n%3), Payload: fmt.Appendf(nil, "m%03d", n)})
	}
	messages = append(messages, &pulsar.ProducerMessage{Key: "key-1"})
	if _, err := w.sendTogether(producer, messages); err != nil {
		return err
	}
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	if err := w.admin.Topics().Compact(*name); err != nil {
		return err
	}
	if err := w.eventually(func() error {
		status, err := w.admin.Topics().CompactStatus(*name)
		if err == nil && status.Status != "SUCCESS" {
			err = errors.New(string(status.Status) + " " + status.LastError)
		}
		return err
	}); err != nil {
		return err
	}
	consumer, err := w.consumer(pulsar.ConsumerOptions{ReadCompacted: true})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := w.receiveTexts(consumer, "m027", "m029", ""); err != nil {
		return err
	}
	return w.quiet(consumer, 200*time.Millisecond)
}

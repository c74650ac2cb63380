package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func partitions() []scenario {
	return []scenario{
		{name: "partitions", run: partitioned},
		{name: "partition_growth", run: partitionGrowth},
		{name: "regex", run: regex},
	}
}

// createPartitioned makes a partitioned topic by the administration library.
func (w *world) createPartitioned(topic string, count int) error {
	name, err := topicName(topic)
	if err != nil {
		return err
	}
	return w.admin.Topics().Create(*name, count)
}

// partitioned routes in turns, by key and by a router of the user's own.
func partitioned(w *world) error {
	topic := w.topic("")
	if err := w.createPartitioned(topic, 4); err != nil {
		return err
	}
	names, err := w.client.TopicPartitions(topic)
	if err != nil {
		return err
	}
	if err := same(len(names), 4); err != nil {
		return err
	}
	consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	chosen, err := w.producer(pulsar.ProducerOptions{
		MessageRouter: func(_ *pulsar.ProducerMessage, metadata pulsar.TopicMetadata) int {
			return int(metadata.NumPartitions()) - 1
		},
	})
	if err != nil {
		return err
	}
	defer chosen.Close()
	if _, err := w.send(producer, numbered(40)...); err != nil {
		return err
	}
	used, came := map[int32]bool{}, map[string]bool{}
	for len(came) < 40 { // a message may come twice, when its topic changes its broker
		found, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		message := found[0]
		came[string(message.Payload())] = true
		used[message.ID().PartitionIdx()] = true
		if !strings.HasSuffix(message.Topic(), fmt.Sprint("-partition-", message.ID().PartitionIdx())) {
			return fmt.Errorf("a message of partition %d says %s", message.ID().PartitionIdx(), message.Topic())
		}
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	if err := same([]any{slices.Sorted(maps.Keys(came)), len(used)}, []any{numbered(40), 4}); err != nil {
		return err
	}
	if _, err := w.send(chosen, "own"); err != nil {
		return err
	}
	for { // until it comes, after any that come twice
		found, err := w.receive(consumer, 1)
		if err != nil {
			return err
		}
		if string(found[0].Payload()) == "own" {
			return same(found[0].ID().PartitionIdx(), 3)
		}
	}
}

// partitionGrowth adds partitions under a running producer and consumer, which find them.
func partitionGrowth(w *world) error {
	topic := w.topic("")
	if err := w.createPartitioned(topic, 1); err != nil {
		return err
	}
	every := 500 * time.Millisecond
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true, PartitionsAutoDiscoveryInterval: every})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, AutoDiscoveryPeriod: every})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if _, err := w.send(producer, "m000"); err != nil {
		return err
	}
	if err := w.receiveTexts(consumer, "m000"); err != nil {
		return err
	}
	name, err := topicName(topic)
	if err != nil {
		return err
	}
	if err := w.admin.Topics().Update(*name, 3); err != nil {
		return err
	}
	return w.eventually(func() error {
		if _, err := w.send(producer, "a", "b", "c"); err != nil {
			return err
		}
		found, err := w.receive(consumer, 3)
		if err != nil {
			return err
		}
		used := map[int32]bool{}
		for _, message := range found {
			used[message.ID().PartitionIdx()] = true
		}
		return same(len(used), 3)
	})
}

// regex follows topics that match, old ones and new ones.
func regex(w *world) error {
	pattern := w.topic("-.*")
	old, err := w.producer(pulsar.ProducerOptions{Topic: w.topic("-old")})
	if err != nil {
		return err
	}
	defer old.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{TopicsPattern: pattern, AutoDiscoveryPeriod: 500 * time.Millisecond})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if _, err := w.send(old, "one"); err != nil {
		return err
	}
	if err := w.receiveTexts(consumer, "one"); err != nil {
		return err
	}
	created, err := w.producer(pulsar.ProducerOptions{Topic: w.topic("-new")})
	if err != nil {
		return err
	}
	defer created.Close()
	if _, err := w.send(created, "two"); err != nil {
		return err
	}
	return w.receiveTexts(consumer, "two")
}

// Tables publishes one part of the messages of topics with the published Go client.
//
//	tables pulsar://host:port part [topic codec batching schema keys]...
//
// It writes one line of JSON for each topic.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	messages  = 30
	longBytes = 150_000
	arguments = 5 // of a topic
	record    = `{"type":"record","name":"Reading","fields":[{"name":"number","type":"int"},{"name":"text","type":"string"}]}`
)

type reading struct {
	Number int32  `json:"number" avro:"number"`
	Text   string `json:"text" avro:"text"`
}

// cell is how the messages of a topic are written.
type cell struct {
	topic, codec, batching, schema, keys string
}

var codecs = map[string]pulsar.CompressionType{
	"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
}

func main() {
	part, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fail(err)
	}
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1]})
	if err != nil {
		fail(err)
	}
	defer client.Close()
	for at := 3; at < len(os.Args); at += arguments {
		one := cell{os.Args[at], os.Args[at+1], os.Args[at+2], os.Args[at+3], os.Args[at+4]}
		err := one.write(client, part)
		detail := ""
		if err != nil {
			detail = err.Error()
		}
		name := fmt.Sprintf("%s-%d", one.topic, part)
		line, _ := json.Marshal(map[string]any{"scenario": name, "ok": err == nil, "detail": detail})
		fmt.Println(string(line))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (c cell) options(part int) pulsar.ProducerOptions {
	options := pulsar.ProducerOptions{
		Topic:                   c.topic,
		Name:                    fmt.Sprintf("writer-%d", part),
		CompressionType:         codecs[c.codec],
		BatchingMaxMessages:     7,
		BatchingMaxPublishDelay: time.Hour,
		DisableBatching:         c.batching == "single" || c.batching == "chunks",
		EnableChunking:          c.batching == "chunks",
	}
	if c.batching == "by-key" {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	switch c.schema {
	case "string":
		options.Schema = pulsar.NewStringSchema(nil)
	case "json":
		options.Schema = pulsar.NewJSONSchema(record, nil)
	case "avro":
		options.Schema = pulsar.NewAvroSchema(record, nil)
	}
	return options
}

func (c cell) message(number int) *pulsar.ProducerMessage {
	message := &pulsar.ProducerMessage{}
	text := fmt.Sprintf("reading %d", number)
	if number%9 == 8 && c.codec != "zlib" { // the Python client throws away empty messages that ZLIB compressed
		text = ""
	}
	switch {
	case c.schema == "string":
		message.Value = text
	case c.schema != "bytes":
		message.Value = &reading{int32(number), text}
	case c.batching == "chunks" && number%5 == 3:
		message.Payload = make([]byte, longBytes)
		rand.New(rand.NewSource(int64(number))).Read(message.Payload)
	default:
		message.Payload = []byte(text)
	}
	if c.keys == "text" || c.keys == "ordering" || c.keys == "some" && number%3 != 0 {
		message.Key = fmt.Sprintf("key \u2603 %d", number%7)
	}
	if c.keys == "ordering" && number%2 != 0 {
		message.OrderingKey = fmt.Sprintf("order %d", number%4)
	}
	if number%4 == 1 {
		message.Properties = map[string]string{"number": strconv.Itoa(number), "empty": ""}
	}
	if number%5 == 2 {
		message.EventTime = time.UnixMilli(1_600_000_000_000 + int64(number))
	}
	return message
}

func (c cell) write(client pulsar.Client, part int) error {
	producer, err := client.CreateProducer(c.options(part))
	if err != nil {
		return err
	}
	defer producer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	receipts := make(chan error, messages)
	for number := part * messages; number < (part+1)*messages; number++ {
		producer.SendAsync(ctx, c.message(number), func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			receipts <- err
		})
		if c.batching == "of-one" {
			if err := producer.FlushWithCtx(ctx); err != nil {
				return err
			}
		}
	}
	if err := producer.FlushWithCtx(ctx); err != nil {
		return err
	}
	for range messages {
		if err := <-receipts; err != nil {
			return err
		}
	}
	return nil
}

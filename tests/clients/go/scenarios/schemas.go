package main

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	userSchema = `{"type":"record","name":"User","namespace":"shop","fields":[` +
		`{"name":"name","type":"string"},{"name":"age","type":"int"}]}`
	userSchemaGrown = `{"type":"record","name":"User","namespace":"shop","fields":[` +
		`{"name":"name","type":"string"},{"name":"age","type":"int"},{"name":"city","type":"string","default":"?"}]}`
	userSchemaBroken = `{"type":"record","name":"User","namespace":"shop","fields":[` +
		`{"name":"name","type":"int"},{"name":"zip","type":"int"}]}`
	wrappedSchema = `{"type":"record","name":"StringValue","namespace":"google.protobuf","fields":[{"name":"value","type":"string"}]}`
)

// user is a record of the schemas above.
type user struct {
	Name string `json:"name" avro:"name"`
	Age  int    `json:"age" avro:"age"`
}

func schemas() []scenario {
	number8, number16, number32, number64 := int8(-7), int16(-300), int32(70_000), int64(1)<<40
	single, double, text := float32(1.5), 2.25, "grüße"
	person := user{Name: "Ann", Age: 41}
	wrapped := wrapperspb.String("inside")
	return []scenario{
		{name: "schema_bytes", run: func(w *world) error {
			return roundTrip(w, "", pulsar.NewBytesSchema(nil), []byte("raw"), new([]byte), []byte("raw"))
		}},
		{name: "schema_string", run: func(w *world) error {
			return roundTrip(w, "", pulsar.NewStringSchema(nil), text, new(*string), &text)
		}},
		{name: "schema_primitives", run: func(w *world) error {
			return first(
				func() error { return roundTrip(w, "-8", pulsar.NewInt8Schema(nil), number8, new(int8), number8) },
				func() error { return roundTrip(w, "-16", pulsar.NewInt16Schema(nil), number16, new(int16), number16) },
				func() error { return roundTrip(w, "-32", pulsar.NewInt32Schema(nil), number32, new(int32), number32) },
				func() error { return roundTrip(w, "-64", pulsar.NewInt64Schema(nil), number64, new(int64), number64) },
				func() error { return roundTrip(w, "-f", pulsar.NewFloatSchema(nil), single, new(float32), single) },
				func() error { return roundTrip(w, "-d", pulsar.NewDoubleSchema(nil), double, new(float64), double) },
			)
		}},
		{name: "schema_json", run: func(w *world) error {
			return roundTrip(w, "", pulsar.NewJSONSchema(userSchema, map[string]string{"made": "by go"}), &person, new(user), person)
		}},
		{name: "schema_avro", run: func(w *world) error {
			return roundTrip(w, "", pulsar.NewAvroSchema(userSchema, nil), person, new(user), person)
		}},
		{name: "schema_protobuf", run: func(w *world) error {
			return first(
				func() error {
					return roundTripText(w, "-avro-definition", pulsar.NewProtoSchema(wrappedSchema, nil), wrapped)
				},
				func() error {
					return roundTripText(w, "-native", pulsar.NewProtoNativeSchemaWithMessage(wrapped, nil), wrapped)
				},
			)
		}},
		{name: "schema_evolution", run: schemaEvolution},
		{name: "schema_incompatible", run: schemaIncompatible},
	}
}

// pass publishes a value by a schema and returns the message that comes.
func (w *world) pass(suffix string, schema pulsar.Schema, value any) (pulsar.Message, error) {
	topic := w.topic(suffix)
	consumer, err := w.consumer(pulsar.ConsumerOptions{Topic: topic, Schema: schema})
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if _, err := producer.Send(w.ctx, &pulsar.ProducerMessage{Value: value}); err != nil {
		return nil, err
	}
	found, err := w.receive(consumer, 1)
	if err != nil {
		return nil, err
	}
	return found[0], consumer.Ack(found[0])
}

// roundTrip passes a value and compares what is decoded into the target.
func roundTrip(w *world, suffix string, schema pulsar.Schema, value, target, expected any) error {
	message, err := w.pass(suffix, schema, value)
	if err != nil {
		return err
	}
	if err := message.GetSchemaValue(target); err != nil {
		return err
	}
	if found := reflect.ValueOf(target).Elem().Interface(); !reflect.DeepEqual(found, expected) {
		return fmt.Errorf("%v came back as %v", expected, found)
	}
	return nil
}

// roundTripText passes a message of Protocol Buffers.
func roundTripText(w *world, suffix string, schema pulsar.Schema, value *wrapperspb.StringValue) error {
	message, err := w.pass(suffix, schema, value)
	if err != nil {
		return err
	}
	var target wrapperspb.StringValue
	if err := message.GetSchemaValue(&target); err != nil {
		return err
	}
	return same(target.GetValue(), value.GetValue())
}

// schemaEvolution publishes by two versions of a schema, in one producer, and reads each by its own.
func schemaEvolution(w *world) error {
	older, newer := pulsar.NewAvroSchema(userSchema, nil), pulsar.NewAvroSchema(userSchemaGrown, nil)
	producer, err := w.producer(pulsar.ProducerOptions{Schema: older})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{Schema: older})
	if err != nil {
		return err
	}
	defer consumer.Close()
	type grown struct {
		Name string `avro:"name"`
		Age  int    `avro:"age"`
		City string `avro:"city"`
	}
	for _, message := range []*pulsar.ProducerMessage{
		{Value: user{"Ann", 41}}, {Value: grown{"Bob", 7, "Ulm"}, Schema: newer},
	} {
		if _, err := producer.Send(w.ctx, message); err != nil {
			return err
		}
	}
	found, err := w.receive(consumer, 2)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(found[0].SchemaVersion(), found[1].SchemaVersion()) {
		return errors.New("both messages have the same version of the schema")
	}
	var old user
	if err := found[0].GetSchemaValue(&old); err != nil {
		return err
	}
	var wide grown
	if err := found[1].GetSchemaValue(&wide); err != nil {
		return err
	}
	return same([]any{old, wide}, []any{user{"Ann", 41}, grown{"Bob", 7, "Ulm"}})
}

// schemaIncompatible is refused with a reason.
func schemaIncompatible(w *world) error {
	producer, err := w.producer(pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(userSchema, nil)})
	if err != nil {
		return err
	}
	defer producer.Close()
	never := uint(0)
	_, err = w.producer(pulsar.ProducerOptions{
		Schema: pulsar.NewAvroSchema(userSchemaBroken, nil), MaxReconnectToBroker: &never,
	})
	return refusal(err, "IncompatibleSchema")
}

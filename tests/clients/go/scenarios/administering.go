package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func administration() []scenario {
	return []scenario{
		{name: "tenants", run: tenants},
		{name: "clusters", run: clusters},
		{name: "brokers", run: brokers},
		{name: "namespaces", run: namespaces},
		{name: "topics", run: topics},
		{name: "partitioned_topics", run: partitionedTopics},
		{name: "subscriptions", run: subscriptions},
		{name: "messages", run: messages},
		{name: "schemas", run: adminSchemas},
		{name: "permissions", run: permissions},
		{name: "stats", run: stats},
		{name: "not_offered", run: notOffered},
	}
}

func topicName(topic string) (*utils.TopicName, error) { return utils.GetTopicName(topic) }

// backlog compares the number of messages that a subscription has not acknowledged.
func (w *world) backlog(topic, subscription string, expected int64) error {
	name, err := topicName(topic)
	if err != nil {
		return err
	}
	found, err := w.admin.Topics().GetStatsWithOption(*name, utils.GetStatsOptions{GetPreciseBacklog: true})
	if err != nil {
		return err
	}
	if _, isThere := found.Subscriptions[subscription]; !isThere {
		return fmt.Errorf("the statistics have no subscription %s", subscription)
	}
	if err := same(found.Subscriptions[subscription].MsgBacklog, expected); err != nil {
		return fmt.Errorf("backlog of %s: %w", subscription, err)
	}
	return nil
}

func contains(values []string, expected ...string) error {
	for _, value := range expected {
		if !slices.Contains(values, value) {
			return fmt.Errorf("%s is not among %v", value, values)
		}
	}
	return nil
}

func tenants(w *world) error {
	library := w.admin.Tenants()
	data := utils.TenantData{Name: "go-tenant", AdminRoles: []string{"boss"}, AllowedClusters: []string{"standalone"}}
	if err := library.Create(data); err != nil {
		return err
	}
	if err := library.Create(data); err == nil || !strings.Contains(err.Error(), "409") {
		return fmt.Errorf("the tenant was made twice: %v", err)
	}
	all, err := library.List()
	if err != nil {
		return err
	}
	if err := contains(all, "public", "go-tenant"); err != nil {
		return err
	}
	data.AdminRoles = []string{"boss", "deputy"}
	if err := library.Update(data); err != nil {
		return err
	}
	found, err := library.Get("go-tenant")
	if err != nil {
		return err
	}
	if err := same(sorted(found.AdminRoles), []string{"boss", "deputy"}); err != nil {
		return err
	}
	if err := library.Delete("go-tenant"); err != nil {
		return err
	}
	if _, err := library.Get("go-tenant"); err == nil {
		return errors.New("the tenant is there after its deletion")
	}
	return nil
}

func clusters(w *world) error {
	all, err := w.admin.Clusters().List()
	if err != nil {
		return err
	}
	if err := contains(all, "standalone"); err != nil {
		return err
	}
	found, err := w.admin.Clusters().Get("standalone")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(found.BrokerServiceURL, "pulsar://") || !strings.HasPrefix(found.ServiceURL, "http") {
		return fmt.Errorf("the cluster's addresses are %+v", found)
	}
	return nil
}

func brokers(w *world) error {
	library := w.admin.Brokers()
	active, err := library.GetActiveBrokers("standalone")
	if err != nil {
		return err
	}
	listed, err := library.GetListActiveBrokers()
	if err != nil {
		return err
	}
	if err := same(sorted(listed), sorted(active)); err != nil {
		return err
	}
	leader, err := library.GetLeaderBroker()
	if err != nil {
		return err
	}
	if leader.BrokerID == "" && leader.ServiceURL == "" {
		return errors.New("the leader has no name")
	}
	if _, err := library.GetOwnedNamespaces("standalone", active[0]); err != nil {
		return err
	}
	if _, err := library.GetRuntimeConfigurations(); err != nil {
		return err
	}
	if _, err := library.GetAllDynamicConfigurations(); err != nil {
		return err
	}
	if _, err := library.GetInternalConfigurationData(); err != nil {
		return err
	}
	if _, err := w.admin.BrokerStats().GetLoadReport(); err != nil {
		return fmt.Errorf("load report: %w", err)
	}
	if _, err := w.admin.BrokerStats().GetMetrics(); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	if _, err := w.admin.BrokerStats().GetTopics(); err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	return library.HealthCheck()
}

func namespaces(w *world) error {
	library := w.admin.Namespaces()
	if err := library.CreateNamespace("public/go-plain"); err != nil {
		return err
	}
	if err := library.CreateNsWithNumBundles("public/go-bundles", 8); err != nil {
		return err
	}
	if err := library.CreateNsWithPolices("public/go-policies", *utils.NewDefaultPolicies()); err != nil {
		return fmt.Errorf("with policies: %w", err)
	}
	all, err := library.GetNamespaces("public")
	if err != nil {
		return err
	}
	if err := contains(all, "public/go-plain", "public/go-bundles", "public/go-policies"); err != nil {
		return err
	}
	found, err := library.GetPolicies("public/go-bundles")
	if err != nil {
		return err
	}
	if err := same(found.Bundles.NumBundles, 8); err != nil {
		return err
	}
	producer, err := w.producer(pulsar.ProducerOptions{Topic: "persistent://public/go-plain/one"})
	if err != nil {
		return err
	}
	defer producer.Close()
	topics, err := library.GetTopics("public/go-plain")
	if err != nil {
		return err
	}
	if err := contains(topics, "persistent://public/go-plain/one"); err != nil {
		return err
	}
	if err := library.Unload("public/go-plain"); err != nil {
		return err
	}
	if _, err := w.send(producer, "after the unload"); err != nil {
		return err
	}
	if err := library.DeleteNamespace("public/go-plain"); err == nil {
		return errors.New("a namespace with a topic was deleted")
	}
	return library.DeleteNamespace("public/go-bundles")
}

func topics(w *world) error {
	library := w.admin.Topics()
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	if err := library.CreateWithProperties(*name, 0, map[string]string{"team": "shop"}); err != nil {
		return err
	}
	properties, err := library.GetProperties(*name)
	if err != nil {
		return err
	}
	if err := same(properties["team"], "shop"); err != nil {
		return fmt.Errorf("properties: %w", err)
	}
	if err := first(
		func() error { return library.UpdateProperties(*name, map[string]string{"tier": "1"}) },
		func() error { return library.RemoveProperty(*name, "team") },
	); err != nil {
		return err
	}
	if properties, err = library.GetProperties(*name); err != nil {
		return err
	}
	if err := same(properties, map[string]string{"tier": "1"}); err != nil {
		return fmt.Errorf("properties: %w", err)
	}
	namespace, err := utils.GetNamespaceName("public/default")
	if err != nil {
		return err
	}
	_, plain, err := library.List(*namespace)
	if err != nil {
		return err
	}
	if err := contains(plain, w.topic("")); err != nil {
		return err
	}
	found, err := library.Lookup(*name)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(found.BrokerURL, "pulsar://") {
		return fmt.Errorf("the topic is at %+v", found)
	}
	if bundle, err := library.GetBundleRange(*name); err != nil || !strings.HasPrefix(bundle, "0x") {
		return fmt.Errorf("its bundle is %q: %v", bundle, err)
	}
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := w.send(producer, "one", "two")
	if err != nil {
		return err
	}
	last, err := library.GetLastMessageID(*name)
	if err != nil {
		return err
	}
	if err := same([]int64{last.LedgerID, last.EntryID}, []int64{ids[1].LedgerID(), ids[1].EntryID()}); err != nil {
		return err
	}
	if err := library.Unload(*name); err != nil {
		return err
	}
	if _, err := w.send(producer, "three"); err != nil {
		return err
	}
	if _, err := library.Terminate(*name); err != nil {
		return err
	}
	if _, err := w.send(producer, "too late"); err == nil {
		return errors.New("a terminated topic took a message")
	}
	producer.Close()
	return library.Delete(*name, true, true)
}

func partitionedTopics(w *world) error {
	library := w.admin.Topics()
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	if err := library.Create(*name, 2); err != nil {
		return err
	}
	if err := library.Update(*name, 4); err != nil {
		return err
	}
	if err := library.Update(*name, 3); err == nil {
		return errors.New("a partitioned topic shrank")
	}
	metadata, err := library.GetMetadata(*name)
	if err != nil {
		return err
	}
	if err := same(metadata.Partitions, 4); err != nil {
		return err
	}
	consumer, err := w.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, numbered(8)...); err != nil {
		return err
	}
	found, err := library.GetPartitionedStats(*name, true)
	if err != nil {
		return err
	}
	if err := same(len(found.Partitions), 4); err != nil {
		return fmt.Errorf("statistics: %w", err)
	}
	producer.Close()
	consumer.Close()
	if err := library.Delete(*name, true, false); err != nil {
		return err
	}
	namespace, err := utils.GetNamespaceName("public/default")
	if err != nil {
		return err
	}
	partitioned, plain, err := library.List(*namespace)
	if err != nil {
		return err
	}
	for _, topic := range append(partitioned, plain...) {
		if strings.HasPrefix(topic, w.topic("")) {
			return fmt.Errorf("%s is there after its deletion", topic)
		}
	}
	return nil
}

func subscriptions(w *world) error {
	library := w.admin.Subscriptions()
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	producer, err := w.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := w.send(producer, numbered(10)...)
	if err != nil {
		return err
	}
	fifth := utils.MessageID{LedgerID: ids[4].LedgerID(), EntryID: ids[4].EntryID(), PartitionIndex: -1, BatchIndex: -1}
	return first(
		func() error { return library.Create(*name, "all", utils.Earliest) },
		func() error { return library.Create(*name, "none", utils.Latest) },
		func() error {
			found, err := library.List(*name)
			if err != nil {
				return err
			}
			return same(sorted(found), []string{"all", "none"})
		},
		func() error { return w.backlog(w.topic(""), "all", 10) },
		func() error { return w.backlog(w.topic(""), "none", 0) },
		func() error { return library.SkipMessages(*name, "all", 3) },
		func() error { return w.backlog(w.topic(""), "all", 7) },
		func() error { return library.ResetCursorToMessageID(*name, "all", fifth) },
		func() error { return w.backlog(w.topic(""), "all", 6) }, // the message that is named comes again
		func() error { return library.ResetCursorToTimestamp(*name, "none", 0) },
		func() error { return w.backlog(w.topic(""), "none", 10) },
		func() error { return library.ClearBacklog(*name, "none") },
		func() error { return w.backlog(w.topic(""), "none", 0) },
		func() error { return library.Delete(*name, "none") },
		func() error { return library.ForceDelete(*name, "all") },
		func() error {
			found, err := library.List(*name)
			if err != nil {
				return err
			}
			return same(len(found), 0)
		},
	)
}

// messages peeks at batches and single messages, compressed and not, and fetches them by id.
func messages(w *world) error {
	library := w.admin.Subscriptions()
	for suffix, options := range map[string]pulsar.ProducerOptions{
		"-single": {DisableBatching: true},
		"-batch":  {},
		"-lz4":    {CompressionType: pulsar.LZ4},
		"-one":    {CompressionType: pulsar.ZSTD, DisableBatching: true},
	} {
		options.Topic = w.topic(suffix)
		name, err := topicName(options.Topic)
		if err != nil {
			return err
		}
		producer, err := w.producer(options)
		if err != nil {
			return err
		}
		defer producer.Close()
		payloads := numbered(3)
		sent := messagesOf(payloads)
		for _, message := range sent {
			message.Properties = map[string]string{"who": "go"}
		}
		ids, err := w.sendTogether(producer, sent)
		if err != nil {
			return err
		}
		if err := library.Create(*name, "looking", utils.Earliest); err != nil {
			return err
		}
		peeked, err := library.PeekMessages(*name, "looking", 3)
		if err != nil {
			return fmt.Errorf("peek%s: %w", suffix, err)
		}
		var found []string
		for _, message := range peeked {
			found = append(found, string(message.Payload))
			if message.Properties["who"] != "go" {
				return fmt.Errorf("peek%s shows the properties %v", suffix, message.Properties)
			}
		}
		if err := same(found, payloads); err != nil {
			return fmt.Errorf("peek%s: %w", suffix, err)
		}
		byID, err := library.GetMessagesByID(*name, ids[2].LedgerID(), ids[2].EntryID())
		if err != nil {
			return fmt.Errorf("by id%s: %w", suffix, err)
		}
		if len(byID) == 0 {
			return fmt.Errorf("by id%s shows nothing", suffix)
		}
		if err := same(string(byID[len(byID)-1].Payload), payloads[2]); err != nil {
			return fmt.Errorf("by id%s: %w", suffix, err)
		}
	}
	return nil
}

func adminSchemas(w *world) error {
	library := w.admin.Schemas()
	topic := w.topic("")
	if err := w.createPlain(topic); err != nil {
		return err
	}
	payload := utils.PostSchemaPayload{SchemaType: "AVRO", Schema: userSchema, Properties: map[string]string{"a": "b"}}
	if err := library.CreateSchemaByPayload(topic, payload); err != nil {
		return err
	}
	grown := payload
	grown.Schema = userSchemaGrown
	check, err := library.TestCompatibilityWithPostSchemaPayload(topic, grown)
	if err != nil {
		return err
	}
	if !check.IsCompatibility {
		return errors.New("a field with a default is said to be incompatible")
	}
	if err := library.CreateSchemaByPayload(topic, grown); err != nil {
		return err
	}
	broken := payload
	broken.Schema = userSchemaBroken
	if err := library.CreateSchemaByPayload(topic, broken); err == nil {
		return errors.New("an incompatible schema was taken")
	}
	newest, err := library.GetSchemaInfoWithVersion(topic)
	if err != nil {
		return err
	}
	if err := same([]any{newest.Version, newest.SchemaInfo.Type, newest.SchemaInfo.Properties["a"]}, []any{1, "AVRO", "b"}); err != nil {
		return err
	}
	oldest, err := library.GetSchemaInfoByVersion(topic, 0)
	if err != nil {
		return err
	}
	if strings.Contains(string(oldest.Schema), "city") {
		return fmt.Errorf("version 0 is %s", oldest.Schema)
	}
	all, err := library.GetAllSchemas(topic)
	if err != nil {
		return err
	}
	if err := same(len(all), 2); err != nil {
		return err
	}
	version, err := library.GetVersionByPayload(topic, payload)
	if err != nil {
		return err
	}
	if err := same(version, 0); err != nil {
		return err
	}
	if err := library.DeleteSchema(topic); err != nil {
		return err
	}
	if _, err := library.GetSchemaInfo(topic); err == nil {
		return errors.New("the schema is there after its deletion")
	}
	return nil
}

// createPlain makes a topic without partitions.
func (w *world) createPlain(topic string) error {
	return w.createPartitioned(topic, 0)
}

// permissions are granted, shown and revoked on a namespace and on a topic.
func permissions(w *world) error {
	namespace, err := utils.GetNamespaceName("public/default")
	if err != nil {
		return err
	}
	produce, err := utils.ParseAuthAction("produce")
	if err != nil {
		return err
	}
	actions := []utils.AuthAction{produce}
	if err := w.admin.Namespaces().GrantNamespacePermission(*namespace, "seller", actions); err != nil {
		return err
	}
	granted, err := w.admin.Namespaces().GetNamespacePermissions(*namespace)
	if err != nil {
		return err
	}
	if len(granted["seller"]) != 1 {
		return fmt.Errorf("the namespace shows %v", granted)
	}
	if err := w.admin.Namespaces().RevokeNamespacePermission(*namespace, "seller"); err != nil {
		return err
	}
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	if err := w.admin.Topics().GrantPermission(*name, "seller", actions); err != nil {
		return err
	}
	onTopic, err := w.admin.Topics().GetPermissions(*name)
	if err != nil {
		return err
	}
	if len(onTopic["seller"]) != 1 {
		return fmt.Errorf("the topic shows %v", onTopic)
	}
	return w.admin.Topics().RevokePermission(*name, "seller")
}

// stats reads the numbers of a topic with a producer and two kinds of consumers into the library's structures.
func stats(w *world) error {
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	producer, err := w.producer(pulsar.ProducerOptions{Name: "counting", Properties: map[string]string{"p": "1"}, DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := w.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, Name: "reading", Properties: map[string]string{"c": "2"},
		SubscriptionProperties: map[string]string{"s": "3"},
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	if _, err := w.send(producer, numbered(10)...); err != nil {
		return err
	}
	if _, err := w.receive(consumer, 10); err != nil {
		return err
	}
	found, err := w.admin.Topics().GetStats(*name)
	if err != nil {
		return err
	}
	if len(found.Publishers) != 1 || len(found.Subscriptions["sub"].Consumers) != 1 {
		return fmt.Errorf("the statistics are %+v", found)
	}
	publisher, subscription := found.Publishers[0], found.Subscriptions["sub"]
	reader := subscription.Consumers[0]
	if err := same(
		[]any{found.MsgCounterIn, found.MsgCounterOut, publisher.ProducerName, publisher.Metadata, subscription.MsgBacklog,
			subscription.SubType, subscription.UnAckedMessages, subscription.IsDurable, subscription.SubscriptionProperties,
			reader.ConsumerName, reader.UnAckedMessages, reader.Metadata},
		[]any{10, 10, "counting", map[string]string{"p": "1"}, 10, "Shared", 10, true, map[string]string{"s": "3"},
			"reading", 10, map[string]string{"c": "2"}},
	); err != nil {
		return err
	}
	for _, text := range []string{publisher.ConnectedSince, reader.ConnectedSince} {
		if !strings.Contains(text, "T") {
			return fmt.Errorf("connected since %q", text)
		}
	}
	if publisher.Address == "" || publisher.ClientVersion == "" || found.StorageSize == 0 {
		return fmt.Errorf("the producer's statistics are %+v", publisher)
	}
	inside, err := w.admin.Topics().GetInternalStats(*name)
	if err != nil {
		return err
	}
	if _, isThere := inside.Cursors["sub"]; !isThere || len(inside.Ledgers) == 0 {
		return fmt.Errorf("the internal statistics are %+v", inside)
	}
	return same(inside.NumberOfEntries, 10)
}

// notOffered is refused with a reason, not with an unknown address.
func notOffered(w *world) error {
	_, err := w.admin.Functions().GetFunctions("public", "default")
	if err := refusal(err, "501"); !errors.Is(err, errRefused) {
		return err
	}
	_, err = w.admin.NsIsolationPolicy().GetNamespaceIsolationPolicies("standalone")
	return refusal(err, "501")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

func policies() []scenario {
	return []scenario{
		{name: "namespace_policies", run: namespacePolicies},
		{name: "topic_policies", run: topicPolicies},
	}
}

// policy is one setting of a namespace or topic: set, read, removed, read again. Each is a row of docs/clients.md.
type policy struct {
	name string
	try  func() error
}

// cycle returns a policy that is set to a value, read back, and, if it can be, removed.
func cycle[T any](name string, value, unset T, set func(T) error, get func() (T, error), remove func() error) policy {
	return policy{name, func() error {
		if err := set(value); err != nil {
			return fmt.Errorf("set: %w", err)
		}
		found, err := get()
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		if err := same(found, value); err != nil {
			return err
		}
		if remove == nil {
			return nil
		}
		if err := remove(); err != nil {
			return fmt.Errorf("remove: %w", err)
		}
		if found, err = get(); err != nil {
			return fmt.Errorf("get after remove: %w", err)
		}
		if err := same(found, unset); err != nil {
			return fmt.Errorf("after remove: %w", err)
		}
		return nil
	}}
}

// inspect has a get of a pointer return the value, and the text "unset" for none.
func inspect[T any](get func() (*T, error)) func() (any, error) {
	return func() (any, error) {
		found, err := get()
		if err != nil {
			return nil, err
		}
		if found == nil {
			return "unset", nil
		}
		return *found, nil
	}
}

// assign has a set of a type take any value.
func assign[T any](set func(T) error) func(any) error {
	return func(value any) error { return set(value.(T)) }
}

// tryAll runs every policy, writes a result line for each, and reports all that differ.
func tryAll(level string, all []policy) error {
	var wrong []string
	for _, one := range all {
		result := map[string]any{"scenario": level + ":" + one.name, "ok": true}
		if err := one.try(); err != nil {
			wrong = append(wrong, one.name+": "+err.Error())
			result["ok"], result["detail"] = false, err.Error()
		}
		writeLine(result)
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func namespacePolicies(w *world) error {
	full := "public/go-settings"
	library := w.admin.Namespaces()
	if err := library.CreateNamespace(full); err != nil {
		return err
	}
	name, err := utils.GetNamespaceName(full)
	if err != nil {
		return err
	}
	number := func(title string, set func(utils.NameSpaceName, int) error, get func(utils.NameSpaceName) (int, error),
		remove func(utils.NameSpaceName) error,
	) policy {
		return cycle(title, 17, -1, func(value int) error { return set(*name, value) },
			func() (int, error) { return get(*name) }, func() error { return remove(*name) })
	}
	rate := utils.DispatchRate{DispatchThrottlingRateInMsg: 30, DispatchThrottlingRateInByte: 4_000, RatePeriodInSecond: 60}
	partitions := 3
	creation := utils.TopicAutoCreationConfig{Allow: true, Type: utils.Partitioned, Partitions: &partitions}
	mode := utils.DeleteWhenSubscriptionsCaughtUp
	inactive := utils.NewInactiveTopicPolicies(&mode, 600, true)
	return tryAll("namespace", []policy{
		cycle("message_ttl", 3600, -1, func(value int) error { return library.SetNamespaceMessageTTL(full, value) },
			func() (int, error) { return library.GetNamespaceMessageTTL(full) },
			func() error { return library.RemoveNamespaceMessageTTL(full) }),
		cycle("retention", any(utils.NewRetentionPolicies(60, 128)), any("unset"),
			assign(func(value utils.RetentionPolicies) error { return library.SetRetention(full, value) }),
			inspect(func() (*utils.RetentionPolicies, error) { return library.GetRetention(full) }),
			func() error { return library.RemoveRetention(full) }),
		cycle("persistence", any(utils.NewPersistencePolicies(3, 3, 2, 0)), any("unset"),
			assign(func(value utils.PersistencePolicies) error { return library.SetPersistence(full, value) }),
			inspect(func() (*utils.PersistencePolicies, error) { return library.GetPersistence(full) }),
			func() error { return library.RemovePersistence(full) }),
		cycle("backlog_quota", utils.NewBacklogQuota(1<<20, -1, utils.ProducerException), utils.BacklogQuota{},
			func(value utils.BacklogQuota) error {
				return library.SetBacklogQuota(full, value, utils.DestinationStorage)
			},
			func() (utils.BacklogQuota, error) {
				found, err := library.GetBacklogQuotaMap(full)
				return found[utils.DestinationStorage], err
			},
			func() error { return library.RemoveBacklogQuota(full) }),
		number("max_consumers_per_subscription", library.SetMaxConsumersPerSubscription,
			library.GetMaxConsumersPerSubscription, library.RemoveMaxConsumersPerSubscription),
		number("max_consumers", library.SetMaxConsumersPerTopic, library.GetMaxConsumersPerTopic,
			library.RemoveMaxConsumersPerTopic),
		number("max_producers", library.SetMaxProducersPerTopic, library.GetMaxProducersPerTopic,
			library.RemoveMaxProducersPerTopic),
		cycle("max_topics_per_namespace", 17, 0, func(value int) error { return library.SetMaxTopicsPerNamespace(*name, value) },
			func() (int, error) { return library.GetMaxTopicsPerNamespace(*name) },
			func() error { return library.RemoveMaxTopicsPerNamespace(*name) }),
		number("subscription_expiration_time", library.SetSubscriptionExpirationTime, library.GetSubscriptionExpirationTime,
			library.RemoveSubscriptionExpirationTime),
		cycle("compaction_threshold", int64(1<<20), 0,
			func(value int64) error { return library.SetCompactionThreshold(*name, value) },
			func() (int64, error) { return library.GetCompactionThreshold(*name) }, nil),
		cycle("dispatch_rate", rate, utils.DispatchRate{},
			func(value utils.DispatchRate) error { return library.SetDispatchRate(*name, value) },
			func() (utils.DispatchRate, error) { return library.GetDispatchRate(*name) }, nil),
		cycle("subscription_dispatch_rate", rate, utils.DispatchRate{},
			func(value utils.DispatchRate) error { return library.SetSubscriptionDispatchRate(*name, value) },
			func() (utils.DispatchRate, error) { return library.GetSubscriptionDispatchRate(*name) }, nil),
		cycle("publish_rate", utils.PublishRate{PublishThrottlingRateInMsg: 50, PublishThrottlingRateInByte: 9_000}, utils.PublishRate{},
			func(value utils.PublishRate) error { return library.SetPublishRate(*name, value) },
			func() (utils.PublishRate, error) { return library.GetPublishRate(*name) }, nil),
		cycle("subscribe_rate", utils.SubscribeRate{SubscribeThrottlingRatePerConsumer: 5, RatePeriodInSecond: 30}, utils.SubscribeRate{},
			func(value utils.SubscribeRate) error { return library.SetSubscribeRate(*name, value) },
			func() (utils.SubscribeRate, error) { return library.GetSubscribeRate(*name) }, nil),
		cycle("inactive_topic_policies", inactive, utils.InactiveTopicPolicies{},
			func(value utils.InactiveTopicPolicies) error { return library.SetInactiveTopicPolicies(*name, value) },
			func() (utils.InactiveTopicPolicies, error) {
				found, err := library.GetInactiveTopicPolicies(*name)
				if err == nil && found.InactiveTopicDeleteMode != nil && *found.InactiveTopicDeleteMode == mode {
					found.InactiveTopicDeleteMode = &mode // compared by its value
				}
				return found, err
			},
			func() error { return library.RemoveInactiveTopicPolicies(*name) }),
		{"auto_topic_creation", func() error {
			if err := library.SetTopicAutoCreation(*name, creation); err != nil {
				return err
			}
			found, err := library.GetTopicAutoCreation(*name)
			if err != nil {
				return err
			}
			if found == nil || !found.Allow || found.Type != creation.Type || found.Partitions == nil || *found.Partitions != 3 {
				return fmt.Errorf("found %+v", found)
			}
			return library.RemoveTopicAutoCreation(*name)
		}},
		cycle("schema_compatibility_strategy", utils.SchemaCompatibilityStrategyBackward, "",
			func(value utils.SchemaCompatibilityStrategy) error {
				return library.SetSchemaCompatibilityStrategy(*name, value)
			},
			func() (utils.SchemaCompatibilityStrategy, error) {
				return library.GetSchemaCompatibilityStrategy(*name)
			}, nil),
		cycle("schema_validation_enforce", true, false,
			func(value bool) error { return library.SetSchemaValidationEnforced(*name, value) },
			func() (bool, error) { return library.GetSchemaValidationEnforced(*name) }, nil),
		cycle("is_allow_auto_update_schema", false, false,
			func(value bool) error { return library.SetIsAllowAutoUpdateSchema(*name, value) },
			func() (bool, error) { return library.GetIsAllowAutoUpdateSchema(*name) }, nil),
		cycle("properties", map[string]string{"a": "1"}, map[string]string{},
			func(value map[string]string) error { return library.UpdateProperties(*name, value) },
			func() (map[string]string, error) { return library.GetProperties(*name) },
			func() error { return library.RemoveProperties(*name) }),
		{"deduplication", func() error {
			if err := library.SetDeduplicationStatus(full, true); err != nil {
				return err
			}
			found, err := library.GetPolicies(full)
			if err == nil && (found.DeduplicationEnabled == nil || !*found.DeduplicationEnabled) {
				err = errors.New("it is not shown")
			}
			return err
		}},
		{"whole", func() error {
			if err := library.SetNamespaceMessageTTL(full, 77); err != nil {
				return err
			}
			found, err := library.GetPolicies(full)
			if err == nil && (found.MessageTTLInSeconds == nil || *found.MessageTTLInSeconds != 77) {
				err = fmt.Errorf("the time to live is not shown: %v", found.MessageTTLInSeconds)
			}
			return err
		}},
	})
}

// onTopic binds the three calls of a policy to a topic.
func onTopic[T any](title string, topic utils.TopicName, value T,
	set func(context.Context, utils.TopicName, T) error, get func(context.Context, utils.TopicName, bool) (*T, error),
	remove func(context.Context, utils.TopicName) error,
) policy {
	ctx := context.Background()
	return cycle(title, any(value), any("unset"),
		assign(func(value T) error { return set(ctx, topic, value) }),
		inspect(func() (*T, error) { return get(ctx, topic, false) }),
		func() error { return remove(ctx, topic) })
}

func topicPolicies(w *world) error {
	if err := w.createPlain(w.topic("")); err != nil {
		return err
	}
	name, err := topicName(w.topic(""))
	if err != nil {
		return err
	}
	provider, isOffered := w.admin.(pulsaradmin.TopicPoliciesProvider)
	if !isOffered {
		return errors.New("this version of the library has no policies of topics")
	}
	library, topic := provider.TopicPolicies(false), *name
	mode := utils.SchemaCompatibilityStrategyBackward
	caughtUp := utils.DeleteWhenSubscriptionsCaughtUp
	inactive := utils.NewInactiveTopicPolicies(&caughtUp, 600, true)
	rate := utils.DispatchRateData{DispatchThrottlingRateInMsg: 30, DispatchThrottlingRateInByte: 4_000, RatePeriodInSecond: 60}
	return tryAll("topic", []policy{
		onTopic("message_ttl", topic, 3600, library.SetMessageTTL, library.GetMessageTTL, library.RemoveMessageTTL),
		onTopic("max_producers", topic, 17, library.SetMaxProducers, library.GetMaxProducers, library.RemoveMaxProducers),
		onTopic("max_consumers", topic, 17, library.SetMaxConsumers, library.GetMaxConsumers, library.RemoveMaxConsumers),
		onTopic("max_unacked_messages_per_consumer", topic, 17, library.SetMaxUnackMessagesPerConsumer,
			library.GetMaxUnackMessagesPerConsumer, library.RemoveMaxUnackMessagesPerConsumer),
		onTopic("max_unacked_messages_per_subscription", topic, 17, library.SetMaxUnackMessagesPerSubscription,
			library.GetMaxUnackMessagesPerSubscription, library.RemoveMaxUnackMessagesPerSubscription),
		onTopic("max_consumers_per_subscription", topic, 17, library.SetMaxConsumersPerSubscription,
			library.GetMaxConsumersPerSubscription, library.RemoveMaxConsumersPerSubscription),
		onTopic("max_subscriptions_per_topic", topic, 17, library.SetMaxSubscriptionsPerTopic,
			library.GetMaxSubscriptionsPerTopic, library.RemoveMaxSubscriptionsPerTopic),
		onTopic("max_message_size", topic, 1_000, library.SetMaxMessageSize, library.GetMaxMessageSize, library.RemoveMaxMessageSize),
		onTopic("retention", topic, utils.NewRetentionPolicies(60, 128), library.SetRetention, library.GetRetention,
			library.RemoveRetention),
		onTopic("persistence", topic,
			utils.PersistenceData{BookkeeperEnsemble: 3, BookkeeperWriteQuorum: 3, BookkeeperAckQuorum: 2},
			library.SetPersistence, library.GetPersistence, library.RemovePersistence),
		cycle("backlog_quota", utils.NewBacklogQuota(1<<20, -1, utils.ProducerException), utils.BacklogQuota{},
			func(value utils.BacklogQuota) error {
				return library.SetBacklogQuota(w.ctx, topic, value, utils.DestinationStorage)
			},
			func() (utils.BacklogQuota, error) {
				found, err := library.GetBacklogQuotaMap(w.ctx, topic, false)
				return found[utils.DestinationStorage], err
			},
			func() error { return library.RemoveBacklogQuota(w.ctx, topic, utils.DestinationStorage) }),
		cycle("inactive_topic_policies", any("delete_when_subscriptions_caught_up 600 true"), any("unset"),
			func(any) error { return library.SetInactiveTopicPolicies(w.ctx, topic, inactive) },
			func() (any, error) {
				found, err := library.GetInactiveTopicPolicies(w.ctx, topic, false)
				if err != nil || found == nil {
					return "unset", err
				}
				return fmt.Sprintf("%s %d %t", *found.InactiveTopicDeleteMode, found.MaxInactiveDurationSeconds,
					found.DeleteWhileInactive), nil
			},
			func() error { return library.RemoveInactiveTopicPolicies(w.ctx, topic) }),
		onTopic("delayed_delivery", topic, utils.DelayedDeliveryData{TickTime: 1000, Active: true}, library.SetDelayedDelivery,
			library.GetDelayedDelivery, library.RemoveDelayedDelivery),
		onTopic("dispatch_rate", topic, rate, library.SetDispatchRate, library.GetDispatchRate, library.RemoveDispatchRate),
		onTopic("subscription_dispatch_rate", topic, rate, library.SetSubscriptionDispatchRate,
			library.GetSubscriptionDispatchRate, library.RemoveSubscriptionDispatchRate),
		onTopic("publish_rate", topic, utils.PublishRateData{PublishThrottlingRateInMsg: 50, PublishThrottlingRateInByte: 9_000},
			library.SetPublishRate, library.GetPublishRate, library.RemovePublishRate),
		onTopic("subscribe_rate", topic, utils.SubscribeRate{SubscribeThrottlingRatePerConsumer: 5, RatePeriodInSecond: 30},
			library.SetSubscribeRate, library.GetSubscribeRate, library.RemoveSubscribeRate),
		onTopic("deduplication", topic, true, library.SetDeduplicationStatus, library.GetDeduplicationStatus,
			library.RemoveDeduplicationStatus),
		onTopic("compaction_threshold", topic, int64(1<<20), library.SetCompactionThreshold, library.GetCompactionThreshold,
			library.RemoveCompactionThreshold),
		onTopic("schema_validation_enforce", topic, true, library.SetSchemaValidationEnforced, library.GetSchemaValidationEnforced,
			library.RemoveSchemaValidationEnforced),
		onTopic("auto_subscription_creation", topic, utils.AutoSubscriptionCreationOverride{AllowAutoSubscriptionCreation: true},
			library.SetAutoSubscriptionCreation, library.GetAutoSubscriptionCreation, library.RemoveAutoSubscriptionCreation),
		onTopic("schema_compatibility_strategy", topic, mode, library.SetSchemaCompatibilityStrategy,
			library.GetSchemaCompatibilityStrategy, library.RemoveSchemaCompatibilityStrategy),
	})
}

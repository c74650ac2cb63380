package main

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

const (
	renewals         = 2
	operationSeconds = 30
	refusalSeconds   = 2 // the client takes a refused CONNECT for a lost connection, and asks again until then
)

// Where the broker asks who its clients are.
var (
	folder    = flag.String("folder", "", "certificates; without it the scenarios of security are not run")
	tlsURL    = flag.String("tls", "", "address of the broker for TLS")
	otherHost = flag.String("other-host", "", "address that shows the certificate of another host")
)

func security() []scenario {
	all := []scenario{
		{name: "token", run: tokens},
		{name: "token_refused", run: tokensRefused},
		{name: "token_renewed", isAlone: true, run: tokenRenewed}, // it counts connections
		{name: "rights", run: rights},
		{name: "tls", run: overTLS},
		{name: "tls_role", run: tlsRole},
		{name: "identity", run: identity},
	}
	for n := range all {
		all[n].isSecured = true
	}
	return all
}

// clientAs connects to the broker that authenticates.
func clientAs(url string, shown pulsar.Authentication, seconds time.Duration, authority string) (pulsar.Client, error) {
	options := pulsar.ClientOptions{
		URL: url, Authentication: shown, OperationTimeout: seconds * time.Second, Logger: quietLogger(),
	}
	if authority != "" {
		options.TLSTrustCertsFilePath = filepath.Join(*folder, authority)
		options.TLSValidateHostname = true
	}
	return pulsar.NewClient(options)
}

func tokenOf(role string, more map[string]string) (string, error) {
	question := map[string]string{"role": role}
	for name, value := range more {
		question[name] = value
	}
	found, err := ask("token", question)
	if err != nil {
		return "", err
	}
	return found.(string), nil
}

// as connects with a good token of a role.
func (w *world) as(role, url, authority string) (pulsar.Client, error) {
	token, err := tokenOf(role, nil)
	if err != nil {
		return nil, err
	}
	return clientAs(url, pulsar.NewAuthenticationToken(token), operationSeconds, authority)
}

// adminAs returns the administration library with a token.
func (w *world) adminAs(token string) (admin.Client, error) {
	return pulsaradmin.NewClient(&config.Config{WebServiceURL: w.web, Token: token})
}

// roundTrip publishes and consumes one message.
func (w *world) roundTrip(client pulsar.Client) error {
	w.client = client
	consumer, err := w.consumer(pulsar.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := w.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, "hello"); err != nil {
		return err
	}
	return w.receiveTexts(consumer, "hello")
}

func tokens(w *world) error {
	client, err := w.as("alice", w.service, "")
	if err != nil {
		return err
	}
	defer client.Close()
	return w.roundTrip(client)
}

func tokensRefused(w *world) error {
	if blank, err := clientAs(w.service, pulsar.NewAuthenticationToken(""), refusalSeconds, ""); err == nil {
		blank.Close()
		return errors.New("the client takes a blank token")
	}
	shown := []pulsar.Authentication{nil}
	for _, kind := range []string{"another key", "expired"} {
		token, err := tokenOf("alice", map[string]string{"kind": kind})
		if err != nil {
			return err
		}
		shown = append(shown, pulsar.NewAuthenticationToken(token))
	}
	for n, one := range shown {
		client, err := clientAs(w.service, one, refusalSeconds, "")
		if err != nil {
			return err
		}
		defer client.Close()
		if _, err = client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("")}); err == nil {
			return fmt.Errorf("a producer was let in with token %d", n)
		}
		if _, err = client.Subscribe(pulsar.ConsumerOptions{Topic: w.topic(""), SubscriptionName: "s"}); err == nil {
			return fmt.Errorf("a consumer was let in with token %d", n)
		}
	}
	return nil
}

// tokenRenewed has the broker ask for new tokens; the one connection stays.
func tokenRenewed(w *world) error {
	var supplied atomic.Int64
	client, err := clientAs(w.service, pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		supplied.Add(1)
		return tokenOf("alice", map[string]string{"seconds": "3"})
	}), operationSeconds, "")
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("")})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, "first"); err != nil {
		return err
	}
	before, err := ask("connections", nil)
	if err != nil {
		return err
	}
	for at := supplied.Load(); supplied.Load() < at+renewals; {
		if _, err := w.send(producer, "next"); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	after, err := ask("connections", nil)
	if err != nil {
		return err
	}
	return same(after, before)
}

func rights(w *world) error {
	publisher, err := w.as("publisher", w.service, "")
	if err != nil {
		return err
	}
	defer publisher.Close()
	w.client = publisher
	producer, err := w.producer(pulsar.ProducerOptions{})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := w.send(producer, "hello"); err != nil {
		return err
	}
	if _, err := w.consumer(pulsar.ConsumerOptions{}); !unauthorized(err) {
		return fmt.Errorf("a consumer: %v", err)
	}
	guest, err := w.as("go-guest", w.service, "")
	if err != nil {
		return err
	}
	defer guest.Close()
	open := func() error {
		opened, err := guest.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("")})
		if err == nil {
			opened.Close()
		}
		return err
	}
	if err := open(); !unauthorized(err) {
		return fmt.Errorf("a producer before the grant: %v", err)
	}
	token, err := tokenOf("admin", nil)
	if err != nil {
		return err
	}
	superuser, err := w.adminAs(token)
	if err != nil {
		return err
	}
	namespace, err := utils.GetNameSpaceName("public", "default")
	if err != nil {
		return err
	}
	produce := []utils.AuthAction{utils.AuthAction("produce")}
	return first(
		func() error { return superuser.Namespaces().GrantNamespacePermission(*namespace, "go-guest", produce) },
		func() error { return w.eventually(open) },
		func() error { return superuser.Namespaces().RevokeNamespacePermission(*namespace, "go-guest") },
		func() error {
			return w.eventually(func() error {
				if err := open(); !unauthorized(err) {
					return fmt.Errorf("a producer after the revocation: %v", err)
				}
				return nil
			})
		},
	)
}

func unauthorized(err error) bool {
	return err != nil && strings.Contains(err.Error(), "AuthorizationError")
}

func overTLS(w *world) error {
	client, err := w.as("alice", *tlsURL, "ca.pem")
	if err != nil {
		return err
	}
	defer client.Close()
	if err := w.roundTrip(client); err != nil {
		return err
	}
	token, err := tokenOf("alice", nil)
	if err != nil {
		return err
	}
	before, err := ask("deceived", nil)
	if err != nil {
		return err
	}
	for url, authority := range map[string]string{*tlsURL: "other-ca.pem", *otherHost: "ca.pem"} {
		refused, err := clientAs(url, pulsar.NewAuthenticationToken(token), refusalSeconds, authority)
		if err != nil {
			return err
		}
		defer refused.Close()
		if _, err := refused.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("")}); err == nil {
			return fmt.Errorf("a stranger at %s was trusted", url)
		}
	}
	deceived, err := ask("deceived", nil)
	if err != nil {
		return err
	}
	return same(deceived, before)
}

func tlsRole(w *world) error {
	certificate := pulsar.NewAuthenticationTLS(
		filepath.Join(*folder, "alice.pem"), filepath.Join(*folder, "alice.key"),
	)
	client, err := clientAs(*tlsURL, certificate, operationSeconds, "ca.pem")
	if err != nil {
		return err
	}
	defer client.Close()
	if err := w.roundTrip(client); err != nil {
		return err
	}
	_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/other/t"})
	if !unauthorized(err) {
		return fmt.Errorf("a producer of another namespace: %v", err)
	}
	return nil
}

// identity finds 401 without a good token, 403 without the right, and the operation with both.
func identity(w *world) error {
	wrong, err := tokenOf("admin", map[string]string{"kind": "another key"})
	if err != nil {
		return err
	}
	user, err := tokenOf("alice", nil)
	if err != nil {
		return err
	}
	superuser, err := tokenOf("admin", nil)
	if err != nil {
		return err
	}
	for token, code := range map[string]int{"": 401, wrong: 401, user: 403} {
		library, err := w.adminAs(token)
		if err != nil {
			return err
		}
		err = library.Namespaces().CreateNamespace("public/by-go")
		var refused rest.Error
		if !errors.As(err, &refused) || refused.Code != code {
			return fmt.Errorf("expected %d: %v", code, err)
		}
	}
	library, err := w.adminAs(superuser)
	if err != nil {
		return err
	}
	return first(
		func() error { return library.Namespaces().CreateNamespace("public/by-go") },
		func() error { return library.Namespaces().DeleteNamespace("public/by-go") },
	)
}

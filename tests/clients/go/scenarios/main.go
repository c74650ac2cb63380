// Clients is what a Go user of Pulsar does, scenario by scenario, with the published client and administration library.
//
//	clients -service pulsar://host:port -web http://host:port [scenario...]
//
// Each scenario writes one line of JSON; without names all of them run. Several run at a time, each on topics of its own;
// those that end brokers run after the others, one by one.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
)

const (
	scenarioSeconds = 150
	atATime         = 6
)

// errRefused marks an answer that has to be a refusal; its text is the reason that the user sees.
var errRefused = errors.New("refused")

// scenario is one thing that a user does. It returns an error if anything differs from what Pulsar does.
type scenario struct {
	name    string
	run     func(*world) error
	isAlone bool // it ends brokers or moves topics, which others would feel
	// it needs a broker that asks who its clients are, and only such scenarios are run at one
	isSecured bool
}

// world is what a scenario works with.
type world struct {
	ctx     context.Context
	name    string
	service string
	web     string
	client  pulsar.Client
	admin   admin.Client
}

func main() {
	service := flag.String("service", "pulsar://localhost:6650", "addresses of the brokers")
	web := flag.String("web", "http://localhost:8080", "address of the gateway")
	flag.Parse()
	chosen := flag.Args()
	for _, name := range chosen {
		if !slices.ContainsFunc(scenarios(), func(s scenario) bool { return s.name == name }) {
			fmt.Fprintf(os.Stderr, "there is no scenario %q\n", name)
			os.Exit(2)
		}
	}
	client, err := newClient(*service)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	library, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: *web})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	base := world{service: *service, web: *web, client: client, admin: library}
	isChosen := func(one scenario) bool {
		return one.isSecured == (*folder != "") && (len(chosen) == 0 || slices.Contains(chosen, one.name))
	}
	places := make(chan struct{}, atATime)
	var all sync.WaitGroup
	for _, one := range scenarios() {
		if one.isAlone || !isChosen(one) {
			continue
		}
		all.Add(1)
		places <- struct{}{}
		go func() {
			defer func() { <-places; all.Done() }()
			tell(one, base)
		}()
	}
	all.Wait()
	for _, one := range scenarios() {
		if one.isAlone && isChosen(one) {
			tell(one, base)
		}
	}
	client.Close()
}

// newClient connects as a user does, with the client's own log at its warnings.
func newClient(service string) (pulsar.Client, error) {
	return pulsar.NewClient(pulsar.ClientOptions{
		URL:              service,
		OperationTimeout: 60 * time.Second,
		Logger:           quietLogger(),
	})
}

func quietLogger() pulsarlog.Logger {
	handler := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	return pulsarlog.NewLoggerWithSlog(slog.New(handler))
}

// tell runs a scenario and writes its result.
func tell(one scenario, base world) {
	base.name = one.name
	ctx, cancel := context.WithTimeout(context.Background(), scenarioSeconds*time.Second)
	defer cancel()
	base.ctx = ctx
	begun := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- guarded(one, &base) }()
	var err error
	select {
	case err = <-ended:
	case <-time.After((scenarioSeconds + 5) * time.Second):
		err = errors.New("a call of the client does not return")
	}
	result := map[string]any{"scenario": one.name, "ok": err == nil, "seconds": time.Since(begun).Seconds()}
	if errors.Is(err, errRefused) {
		result["ok"], result["refused"] = true, true
	}
	if err != nil {
		result["detail"] = strings.TrimPrefix(err.Error(), errRefused.Error()+": ")
	}
	writeLine(result)
}

func guarded(one scenario, w *world) (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("panic: %v\n%s", found, debug.Stack())
		}
	}()
	return one.run(w)
}

var (
	output    sync.Mutex
	questions sync.Mutex
	answers   = bufio.NewReader(os.Stdin)
)

func writeLine(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

// ask has the test do something to the cluster and returns its answer.
func ask(what string, arguments map[string]string) (any, error) {
	questions.Lock()
	defer questions.Unlock()
	question := map[string]string{"ask": what}
	for name, value := range arguments {
		question[name] = value
	}
	writeLine(question)
	line, err := answers.ReadBytes('\n')
	if err == io.EOF {
		return nil, fmt.Errorf("there is nobody who would do %s", what)
	}
	if err != nil {
		return nil, err
	}
	var answer struct {
		OK     bool `json:"ok"`
		Answer any  `json:"answer"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, err
	}
	if !answer.OK {
		return nil, fmt.Errorf("%s: %v", what, answer.Answer)
	}
	return answer.Answer, nil
}

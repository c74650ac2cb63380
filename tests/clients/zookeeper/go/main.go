// Scenarios of go-zookeeper. The arguments are the servers, separated by commas, and the names of the scenarios.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

const deadline = 60 * time.Second

var (
	open   = zk.WorldACL(zk.PermAll)
	answer = bufio.NewReader(os.Stdin)
)

// world is what one scenario uses. All its nodes are below root.
type world struct {
	servers []string
	root    string
	links   []*link
}

// link is a client whose connection the scenario can break.
type link struct {
	*zk.Conn
	events  <-chan zk.Event
	mutex   sync.Mutex
	socket  net.Conn
	blocked atomic.Bool
}

type silent struct{}

func (silent) Printf(string, ...interface{}) {}

func (w *world) client(timeout time.Duration) *link {
	l := &link{}
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		if l.blocked.Load() {
			return nil, errors.New("the network is down")
		}
		socket, err := net.DialTimeout(network, address, timeout)
		l.mutex.Lock()
		l.socket = socket
		l.mutex.Unlock()
		return socket, err
	}
	conn, events, err := zk.Connect(w.servers, timeout, zk.WithDialer(dial), zk.WithLogger(silent{}))
	must(err)
	l.Conn, l.events = conn, events
	w.links = append(w.links, l)
	l.await(zk.StateHasSession)
	return l
}

// await waits for a state of the session, and returns those before it.
func (l *link) await(state zk.State) []zk.State {
	var seen []zk.State
	over := time.After(deadline)
	for {
		select {
		case event := <-l.events:
			if event.Type != zk.EventSession {
				continue
			}
			if event.State == state {
				return seen
			}
			seen = append(seen, event.State)
		case <-over:
			panic(fmt.Sprintf("never in state %v, only %v", state, seen))
		}
	}
}

// cut breaks the connection; the client dials again at once, unless it is blocked.
func (l *link) cut() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.socket.Close()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, what string, arguments ...interface{}) {
	if !holds {
		panic("does not hold: " + fmt.Sprintf(what, arguments...))
	}
}

func fails(expected, err error) {
	check(errors.Is(err, expected), "the error is %v, not %v", expected, err)
}

func next(events <-chan zk.Event) zk.Event {
	select {
	case event := <-events:
		return event
	case <-time.After(deadline):
		panic("there is no event")
	}
}

func eventually(what string, condition func() bool) {
	over := time.Now().Add(deadline)
	for !condition() {
		check(time.Now().Before(over), "%s", what)
		time.Sleep(10 * time.Millisecond)
	}
}

// ask has the test do something, and waits until it is done.
func ask(what string) {
	say(map[string]interface{}{"ask": what})
	line, err := answer.ReadString('\n')
	must(err)
	check(strings.Contains(line, `"ok": true`), "%s is answered: %s", what, line)
}

func say(said map[string]interface{}) {
	line, err := json.Marshal(said)
	must(err)
	fmt.Println(string(line))
}

func run(servers []string, name string, scenario func(*world)) (err error) {
	w := &world{servers: servers, root: "/" + name}
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("%v", problem)
		}
		for _, l := range w.links {
			l.Close()
		}
	}()
	_, err = w.client(session).Create(w.root, nil, 0, open)
	must(err)
	scenario(w)
	return nil
}

func main() {
	servers := strings.Split(os.Args[1], ",")
	for _, name := range os.Args[2:] {
		begin := time.Now()
		result := map[string]interface{}{"scenario": name, "ok": true}
		if scenario, known := scenarios[name]; !known {
			result["ok"], result["detail"] = false, "there is no such scenario"
		} else if err := run(servers, name, scenario); err != nil {
			result["ok"], result["detail"] = false, err.Error()
		} else {
			result["detail"] = time.Since(begin).String()
		}
		say(result)
	}
}

package main

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

var scenarios = map[string]func(*world){
	"nodes":          nodes,
	"sequence":       sequence,
	"containers":     containers,
	"ttl":            ttl,
	"multi":          multi,
	"acl":            acl,
	"watches":        watches,
	"locks":          locks,
	"reconnect":      reconnect,
	"expiry":         expiry,
	"endpoint_death": endpointDeath,
}

const session = 40 * time.Second // survives whatever a busy machine does to it

func nodes(w *world) {
	c := w.client(session)
	path, err := c.Create(w.root+"/a", []byte("1"), 0, open)
	must(err)
	check(path == w.root+"/a", "the path is %s", path)
	_, err = c.Create(path, nil, 0, open)
	fails(zk.ErrNodeExists, err)
	_, err = c.Create(w.root+"/none/b", nil, 0, open)
	fails(zk.ErrNoNode, err)
	stat, err := c.Set(path, []byte("22"), 0)
	must(err)
	check(stat.Version == 1 && stat.DataLength == 2, "the stat is %+v", stat)
	_, err = c.Set(path, nil, 0)
	fails(zk.ErrBadVersion, err)
	data, _, err := c.Get(path)
	must(err)
	check(string(data) == "22", "the data is %q", data)
	_, err = c.Create(path+"/child", []byte{}, 0, open)
	must(err)
	fails(zk.ErrNotEmpty, c.Delete(path, -1))
	names, stat, err := c.Children(path)
	must(err)
	check(len(names) == 1 && names[0] == "child" && stat.NumChildren == 1, "the children are %v", names)
	must(c.Delete(path+"/child", 0))
	must(c.Delete(path, 1))
	exists, _, err := c.Exists(path)
	must(err)
	check(!exists, "the node is deleted")
	_, err = c.Sync(w.root)
	must(err)
}

func sequence(w *world) {
	c, other := w.client(session), w.client(session)
	for number := 0; number < 3; number++ {
		path, err := c.Create(w.root+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, open)
		must(err)
		check(path == fmt.Sprintf("%s/n-%010d", w.root, number), "the path is %s", path)
	}
	_, stat, err := other.Get(w.root + "/n-0000000001")
	must(err)
	check(stat.EphemeralOwner == c.SessionID(), "the owner is %x", stat.EphemeralOwner)
	path, err := c.CreateProtectedEphemeralSequential(w.root+"/p-", nil, open)
	must(err)
	check(strings.HasPrefix(path, w.root+"/_c_"), "the path is %s", path)
	_, err = c.Create(path+"/child", nil, 0, open)
	fails(zk.ErrNoChildrenForEphemerals, err)
	c.Close()
	eventually("the ephemeral nodes are gone", func() bool {
		names, _, err := other.Children(w.root)
		must(err)
		return len(names) == 0
	})
}

func containers(w *world) {
	c := w.client(session)
	path, err := c.CreateContainer(w.root+"/c", nil, zk.FlagContainer, open)
	must(err)
	_, err = c.Create(path+"/child", nil, 0, open)
	must(err)
	must(c.Delete(path+"/child", -1))
	gone(c, path)
}

func ttl(w *world) {
	c := w.client(session)
	path, err := c.CreateTTL(w.root+"/t", []byte("v"), zk.FlagTTL, open, time.Second)
	must(err)
	gone(c, path)
}

func gone(c *link, path string) {
	eventually(path+" is gone", func() bool {
		exists, _, err := c.Exists(path)
		must(err)
		return !exists
	})
}

func multi(w *world) {
	c := w.client(session)
	a, b := w.root+"/a", w.root+"/b-"
	results, err := c.Multi(
		&zk.CreateRequest{Path: a, Data: []byte("1"), Acl: open},
		&zk.SetDataRequest{Path: a, Data: []byte("2"), Version: 0},
		&zk.CheckVersionRequest{Path: a, Version: 1},
		&zk.CreateRequest{Path: b, Acl: open, Flags: zk.FlagSequence},
	)
	must(err)
	check(len(results) == 4 && results[3].String == b+"0000000001", "the results are %+v", results)
	results, err = c.Multi(
		&zk.SetDataRequest{Path: a, Data: []byte("3"), Version: 1},
		&zk.DeleteRequest{Path: w.root + "/none", Version: -1},
		&zk.DeleteRequest{Path: a, Version: -1},
	)
	fails(zk.ErrNoNode, err)
	check(len(results) == 3 && results[1].Error == zk.ErrNoNode, "the results are %+v", results)
	data, stat, err := c.Get(a)
	must(err)
	check(string(data) == "2" && stat.Version == 1, "nothing of a failed transaction is done: %q", data)
}

func acl(w *world) {
	owner, stranger := w.client(session), w.client(session)
	must(owner.AddAuth("digest", []byte("user:secret")))
	mine := zk.DigestACL(zk.PermAll, "user", "secret")
	path, err := owner.Create(w.root+"/mine", []byte("v"), 0, mine)
	must(err)
	_, _, err = stranger.Get(path)
	fails(zk.ErrNoAuth, err)
	_, _, err = stranger.Exists(path)
	fails(zk.ErrNoAuth, err) // since ZooKeeper 3.9
	_, err = stranger.Set(path, nil, -1)
	fails(zk.ErrNoAuth, err)
	found, _, err := owner.GetACL(path)
	must(err)
	check(len(found) == 1 && found[0] == mine[0], "the list is %+v", found)
	_, err = owner.SetACL(path, append(mine, zk.WorldACL(zk.PermRead)...), -1)
	must(err)
	data, _, err := stranger.Get(path)
	must(err)
	check(string(data) == "v", "a stranger reads what it may: %q", data)
	fresh := w.client(session)
	must(fresh.AddAuth("digest", []byte("user:secret")))
	fresh.cut()
	fresh.await(zk.StateHasSession)
	_, err = fresh.Set(path, []byte("w"), 0) // the client gives its credentials to each connection
	must(err)
}

func watches(w *world) {
	c, other := w.client(session), w.client(session)
	a := w.root + "/a"
	exists, _, created, err := c.ExistsW(a)
	must(err)
	check(!exists, "there is no node yet")
	_, _, children, err := c.ChildrenW(w.root)
	must(err)
	_, err = other.Create(a, nil, 0, open)
	must(err)
	check(next(created).Type == zk.EventNodeCreated, "the creation is seen")
	check(next(children).Type == zk.EventNodeChildrenChanged, "the child is seen")
	_, _, changed, err := c.GetW(a)
	must(err)
	_, err = other.Set(a, []byte("v"), -1)
	must(err)
	check(next(changed).Type == zk.EventNodeDataChanged, "the change is seen")
	_, _, deleted, err := c.GetW(a)
	must(err)
	c.blocked.Store(true)
	c.cut()
	must(other.Delete(a, -1)) // unseen, until the client has told of its watches again
	c.blocked.Store(false)
	event := next(deleted)
	check(event.Type == zk.EventNodeDeleted && event.Path == a, "the event is %+v", event)
}

func locks(w *world) {
	const clients, rounds = 3, 8
	var group sync.WaitGroup
	var inside, count int // guarded by the lock that is tested
	problems := make(chan error, clients)
	for number := 0; number < clients; number++ {
		c := w.client(session)
		group.Add(1)
		go func() {
			defer group.Done()
			lock := zk.NewLock(c.Conn, w.root+"/lock", open)
			for round := 0; round < rounds; round++ {
				if err := lock.Lock(); err != nil {
					problems <- err
					return
				}
				inside++
				if inside != 1 {
					problems <- fmt.Errorf("%d are inside", inside)
				}
				count++
				inside--
				if err := lock.Unlock(); err != nil {
					problems <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(problems)
	for problem := range problems {
		must(problem)
	}
	check(count == clients*rounds, "the count is %d", count)
	dying, waiting := w.client(session), w.client(session)
	held := zk.NewLock(dying.Conn, w.root+"/lock", open)
	must(held.Lock())
	fails(zk.ErrDeadlock, held.Lock())
	got := make(chan error, 1)
	go func() { got <- zk.NewLock(waiting.Conn, w.root+"/lock", open).Lock() }()
	dying.Close()
	must(<-got)
}

func reconnect(w *world) {
	c, other := w.client(session), w.client(session)
	id := c.SessionID()
	_, err := c.Create(w.root+"/e", nil, zk.FlagEphemeral, open)
	must(err)
	for round := 0; round < 3; round++ {
		c.cut()
		seen := c.await(zk.StateHasSession)
		for _, state := range seen {
			check(state != zk.StateExpired, "the session continues")
		}
		check(c.SessionID() == id, "the session is the same")
		_, stat, err := other.Get(w.root + "/e")
		must(err)
		check(stat.EphemeralOwner == id, "the node is the session's")
	}
}

func expiry(w *world) {
	c, other := w.client(5*time.Second), w.client(session)
	id := c.SessionID()
	_, err := c.Create(w.root+"/e", nil, zk.FlagEphemeral, open)
	must(err)
	exists, _, events, err := other.ExistsW(w.root + "/e")
	must(err)
	check(exists, "the node is there")
	c.blocked.Store(true)
	c.cut()
	check(next(events).Type == zk.EventNodeDeleted, "the node goes with the session")
	c.blocked.Store(false)
	c.await(zk.StateExpired)
	c.await(zk.StateHasSession)
	check(c.SessionID() != id, "the session is another")
	_, err = c.Create(w.root+"/e", nil, zk.FlagEphemeral, open)
	must(err)
}

func endpointDeath(w *world) {
	c := w.client(session)
	id := c.SessionID()
	_, err := c.Create(w.root+"/e", nil, zk.FlagEphemeral, open)
	must(err)
	_, _, watched, err := c.ChildrenW(w.root)
	must(err)
	names := []string{"first", "second"}
	for round, name := range names {
		ask("kill the " + name)
		eventually("the client is served", func() bool {
			_, _, err := c.Get(w.root)
			return err == nil
		})
		check(c.SessionID() == id, "the session is the same")
		other := w.client(session)
		_, stat, err := other.Get(w.root + "/e")
		must(err)
		check(stat.EphemeralOwner == id, "the node is the session's")
		_, err = other.Create(fmt.Sprintf("%s/n-%d", w.root, round), nil, 0, open)
		must(err)
		check(next(watched).Type == zk.EventNodeChildrenChanged, "the watch is restored")
		var children []string
		children, _, watched, err = c.ChildrenW(w.root)
		must(err)
		sort.Strings(children)
		check(len(children) == round+2, "the children are %v", children)
		ask("start the " + name)
	}
}

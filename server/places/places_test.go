package places

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func TestQueue(t *testing.T) {
	l := New(Options{Most: 2, MostOf: map[Kind]int{OfRepo: 1}, Waiting: 2, Patience: time.Hour})
	acquire := func(repo string) func() {
		t.Helper()
		place, err := l.Enter(t.Context(), Small, Share{OfRepo, repo})
		if err != nil {
			t.Fatal(err)
		}
		return place.Release
	}
	first := acquire("a")
	second := make(chan func(), 1)
	go func() { place, _ := l.Enter(t.Context(), Small, Share{OfRepo, "a"}); second <- place.Release }()
	waiting := func(n int) {
		t.Helper()
		await.Until(t, "requests wait", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.queue) == n })
	}
	waiting(1)
	other := acquire("b") // the user b does not wait for the requests of the user a
	ctx, cancel := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() { _, err := l.Enter(ctx, Small, Share{OfRepo, "c"}); third <- err }()
	waiting(2)
	if _, err := l.Enter(t.Context(), Small, Share{OfRepo, "d"}); err != ErrBusy {
		t.Errorf("request beside a full queue: got %v, want %v", err, ErrBusy)
	}
	cancel()
	if err := await.Receive(t, third); !errors.Is(err, context.Canceled) {
		t.Errorf("request that has ended in the queue: got %v, want %v", err, context.Canceled)
	}
	first()
	await.Receive(t, second)()
	other()
	l.o.Patience = 0
	a, b := acquire("a"), acquire("b")
	if _, err := l.Enter(t.Context(), Small, Share{OfRepo, "c"}); err != ErrBusy {
		t.Errorf("request that has waited for too long: got %v, want %v", err, ErrBusy)
	}
	a()
	b()
	if l.running != 0 || len(l.of) != 0 || len(l.queue) != 0 {
		t.Errorf("places after all requests: %d running, %v, %d waiting", l.running, l.of, len(l.queue))
	}
}

func TestSharesOfTokens(t *testing.T) {
	l := New(Options{Most: 4, MostOf: map[Kind]int{OfRepo: 3, OfToken: 2, OfNamespace: 3}, Waiting: 4})
	acquire := func(namespace, token, repo string, want error) {
		t.Helper()
		_, err := l.Enter(t.Context(), Small, Share{OfRepo, repo}, Share{OfToken, token}, Share{OfNamespace, namespace})
		if err != want {
			t.Errorf("acquire for token %s and repository %s of %s: got %v, want %v", token, repo, namespace, err, want)
		}
	}
	acquire("a", "1", "x", nil)
	acquire("a", "1", "y", nil)
	acquire("a", "1", "z", ErrBusy)
	acquire("a", "2", "x", nil)
	acquire("a", "2", "z", ErrBusy)
	acquire("b", "3", "x", nil)
	acquire("c", "4", "u", ErrBusy) // all places are taken
}

func TestQueueHasRoomForOthers(t *testing.T) {
	l := New(Options{Most: 4, MostOf: map[Kind]int{OfRepo: 1}, Waiting: 4, Patience: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 3 {
		go l.Enter(ctx, Small, Share{OfRepo, "a"})
		await.Until(t, "request runs or waits",
			func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.running+len(l.queue) == i+1 })
	}
	if _, err := l.Enter(ctx, Small, Share{OfRepo, "a"}); err != ErrBusy {
		t.Errorf("request of a repository that has half of the queue: got %v, want %v", err, ErrBusy)
	}
	place, err := l.Enter(ctx, Small, Share{OfRepo, "b"})
	if err != nil {
		t.Fatalf("request of another repository: %v", err)
	}
	place.Release()
}

func TestSharesOfReads(t *testing.T) {
	for _, shares := range []map[Kind]int{Parts(32), PartsOfReads(32), Parts(1), PartsOfReads(1)} {
		for kind, n := range shares {
			if n < 1 || n > 24 {
				t.Errorf("share of a %s: got %d", kind, n)
			}
		}
	}
	if got := Of("ns", "", "t"); len(got) != 2 {
		t.Errorf("shares without a repository: got %v", got)
	}
}

// TestMemoryOfRequests checks that the memory of all requests together never exceeds the limit, and that a request of
// each class can always begin.
func TestMemoryOfRequests(t *testing.T) {
	for _, total := range []int64{100 << 20, 512 << 20, 12 << 30, 512 << 30} {
		m := NewMemory(total, 0)
		all := make([]*Places, classes)
		for c := range classes {
			all[c] = New(Options{Most: 400, MostOf: Parts(400), Memory: m, Class: c})
		}
		var running []*Place
		begun := make([]int, classes)
		for n := range 400 {
			for c := range classes {
				place, err := all[c].Enter(t.Context(), Size(n%2), Of(string(rune('a'+n%5)), "", "")...)
				if err != nil {
					continue
				}
				begun[c]++
				running = append(running, place)
			}
		}
		var sum int64
		for _, place := range running {
			got := place.Memory(0)
			sum += processes * got
			if got > mostEach || got < min(least, total/int64(2*classes)) {
				t.Errorf("%d MiB: a process can allocate %d MiB", total>>20, got>>20)
			}
		}
		if sum > total || sum != m.Used() {
			t.Errorf("%d MiB: processes can allocate %d MiB together, %d are counted", total>>20, sum>>20, m.Used()>>20)
		}
		for c, n := range begun {
			if n == 0 {
				t.Errorf("%d MiB: no request of class %d could begin", total>>20, c)
			}
		}
		for _, place := range running {
			place.Release()
			place.Release()
		}
		if n := m.Used(); n != 0 {
			t.Errorf("%d MiB: %d bytes are used after the end", total>>20, n)
		}
	}
}

func TestMemoryOfOneNamespace(t *testing.T) {
	m := NewMemory(8<<30, 0)
	p := New(Options{Most: 1000, MostOf: Parts(1000), Memory: m})
	for range 1000 {
		if _, err := p.Enter(t.Context(), Large, Of("a", "", "")...); err != nil {
			break
		}
	}
	if _, err := p.Enter(t.Context(), Large, Of("a", "", "")...); err != ErrBusy {
		t.Errorf("request of a namespace that has its part of the memory: got %v, want %v", err, ErrBusy)
	}
	if _, err := p.Enter(t.Context(), Large, Of("b", "", "")...); err != nil {
		t.Errorf("request of another namespace: %v", err)
	}
}

func TestRequestThatWaitsForMemory(t *testing.T) {
	m := NewMemory(512<<20, 0)
	reads := New(Options{Most: 100, Patience: time.Hour, Memory: m, Class: Reads})
	transfers := New(Options{Most: 100, Patience: time.Hour, Memory: m, Class: Transfers})
	place, err := transfers.Enter(t.Context(), Large)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Keep(1); ok {
		t.Error("an idle process is kept although others need the memory")
	}
	entered := make(chan *Place)
	for _, p := range []*Places{reads, transfers} {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for err = nil; err == nil; {
			_, err = p.Enter(ended, Large)
		}
	}
	go func() {
		place, _ := transfers.Enter(context.WithoutCancel(t.Context()), Large)
		entered <- place
	}()
	await.Until(t, "request waits",
		func() bool { transfers.mu.Lock(); defer transfers.mu.Unlock(); return len(transfers.queue) == 1 })
	place.Release()
	(<-entered).Release()
	var none *Memory
	if release, ok := none.Keep(1 << 40); !ok {
		t.Error("a process is not kept without a limit")
	} else {
		release()
	}
	idle := NewMemory(8<<30, 0)
	release, ok := idle.Keep(1 << 30)
	if !ok || idle.Used() != 1<<30 {
		t.Errorf("idle process: got %t, %d bytes are used", ok, idle.Used())
	}
	release()
	release()
	if idle.Used() != 0 {
		t.Errorf("%d bytes are used after the end of an idle process", idle.Used())
	}
}

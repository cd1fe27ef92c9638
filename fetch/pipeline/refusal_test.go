package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/prioritize"
)

// spoiling is a remote whose answers cannot be used if they have the bad object.
func spoiling(t *testing.T, bad object.ID, mended *atomic.Bool) (*Pipeline, *fakeRemote) {
	t.Helper()
	r := &fakeRemote{answer: func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if !mended.Load() && slices.ContainsFunc(b.Wants, func(w prioritize.Want) bool { return w.ID == bad }) {
			return AnswerError{Err: errors.New("larger than it says")}
		}
		return deliver(ctx, n, b, arrived)
	}}
	p := New(Config{Send: r.send, Cached: nothingCached, Deadline: 10 * time.Second, Log: zaptest.NewLogger(t)})
	p.refusals.firstRetry = time.Millisecond
	t.Cleanup(p.Close)
	return p, r
}

func TestUnusableAnswerIsAskedForSoManyTimes(t *testing.T) {
	var mended atomic.Bool
	bad := blobID(7)
	p, r := spoiling(t, bad, &mended)
	p.Queue(wants(0, 64, prioritize.Source))
	refused := func() *refusal {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		return p.refusals.byID[bad]
	}
	await.Until(t, "the refusal is final", func() bool {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		of := p.refusals.byID[bad]
		return of != nil && of.Next.IsZero() && !p.examiner.examining
	})
	asked := 0
	for _, b := range r.sent() {
		if slices.ContainsFunc(b, func(w prioritize.Want) bool { return w.ID == bad }) {
			asked++
		}
	}
	if most := 7 + singleTries + refusedTries; asked > most { // 64 wants are halved six times
		t.Errorf("requests for the bad object: got %d, want at most %d", asked, most)
	}
	if n := p.Prefetching(); n > 0 {
		t.Errorf("contents still wanted: got %d, want none", n)
	}
	before := len(r.sent())
	var of *refusal
	if _, err := p.Wait(context.Background(), want(7), Neighbours{Patience: HedgeAfter}); !errors.As(err, &of) ||
		of.Object != bad {
		t.Errorf("wait for the bad object: got %v, want a refusal of it", err)
	}
	if n := len(r.sent()) - before; n > 0 {
		t.Errorf("requests for a refused object: got %d, want none", n)
	}
	mended.Store(true)
	p.shared.mu.Lock()
	p.refusals.forgive(object.ID{})
	p.shared.mu.Unlock()
	if _, err := p.Wait(context.Background(), want(7), Neighbours{Patience: HedgeAfter}); err != nil || refused() != nil {
		t.Errorf("wait after the refusal was forgiven: %v", err)
	}
}

func TestRemoteThatIsAwayGetsOneRequestAtATime(t *testing.T) {
	var now, most atomic.Int32
	var up atomic.Bool
	r := &fakeRemote{answer: func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if up.Load() {
			return deliver(ctx, n, b, arrived)
		}
		if b.probe {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
		}
		time.Sleep(time.Millisecond)
		return fmt.Errorf("dial: %w", transport.ErrUnreachable)
	}}
	p := New(Config{Send: r.send, Cached: nothingCached, Deadline: 20 * time.Second, Log: zaptest.NewLogger(t)})
	t.Cleanup(p.Close)
	p.Queue(wants(100, 5000, prioritize.Source))
	got := make(chan error, 50)
	for i := range cap(got) {
		go func() {
			_, err := p.Wait(context.Background(), want(i), Neighbours{Patience: HedgeAfter})
			got <- err
		}()
	}
	await.Until(t, "all callers wait and the pipeline pauses for a second", func() bool {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		return p.health.readersWaiting == cap(got) && p.health.pause >= time.Second
	})
	sent := r.sent()
	if n := len(sent); n > ForegroundSenders+backgroundSenders+8 || len(sent[n-1]) != 1 || most.Load() != 1 {
		t.Errorf("requests while the remote is away: got %d, %d probes at once, the last for %d contents; want few, one at a time, for one", n, most.Load(), len(sent[n-1]))
	}
	up.Store(true)
	for range cap(got) {
		if err := <-got; err != nil {
			t.Errorf("reader that waited for the remote: %v", err)
		}
	}
}

// History whose answers cannot be used is asked for so many times, after ever longer pauses, and then no more by
// itself.
func TestUnusableHistoryIsAskedForSoManyTimes(t *testing.T) {
	p := New(Config{Send: (&fakeRemote{answer: deliver}).send, Cached: nothingCached, Deadline: 10 * time.Second,
		Log: zaptest.NewLogger(t)})
	t.Cleanup(p.Close)
	p.refusals.firstRetry = time.Millisecond
	asked := 0
	ask := func() error {
		return p.refusals.Request(context.Background(), object.ID{}, func() error {
			asked++
			return AnswerError{Err: errors.New("larger than it says")}
		})
	}
	var last *refusal
	await.Until(t, "the refusal of the history is final", func() bool {
		for range 100 { // however often it is wanted
			if !errors.As(ask(), &last) {
				t.Fatal("history whose answer cannot be used: got no refusal")
			}
		}
		return last.Next.IsZero()
	})
	if asked != refusedTries+1 {
		t.Errorf("requests for history: got %d, want %d", asked, refusedTries+1)
	}
	p.shared.mu.Lock()
	p.refusals.forgive(object.ID{})
	p.shared.mu.Unlock()
	if ask(); asked != refusedTries+2 {
		t.Errorf("requests after the refusal was forgiven: got %d, want one more", asked-refusedTries-1)
	}
}

// A refused tree that comes with a commit is refused no more.
func TestRefusedObjectComesInAnotherWay(t *testing.T) {
	var mended atomic.Bool
	p, _ := spoiling(t, blobID(7), &mended)
	rs := p.Refusals()
	for n := range 2 {
		err := rs.Request(t.Context(), blobID(n), func() error { return AnswerError{Err: errors.New("cut off")} })
		if !IsRefused(err) {
			t.Fatalf("request with an invalid answer: got %v", err)
		}
	}
	rs.Settle(func(id object.ID) bool { return id == blobID(1) })
	if list := rs.List(); len(list) != 1 || list[0].Object != blobID(0) {
		t.Errorf("refused objects: got %v, want the first one", list)
	}
}

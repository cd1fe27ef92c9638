package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/prioritize"
)

// fakeRemote answers batches; a test may hold it or make it fail.
type fakeRemote struct {
	mu      sync.Mutex
	batches [][]prioritize.Want
	answer  func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error
}

func nothingCached(object.ID) bool { return false }

func (r *fakeRemote) send(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error {
	r.mu.Lock()
	r.batches = append(r.batches, b.Wants)
	n := len(r.batches)
	r.mu.Unlock()
	return r.answer(ctx, n, b, arrived)
}

func (r *fakeRemote) sent() [][]prioritize.Want {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches
}

func deliver(_ context.Context, _ int, b *Batch, arrived func(object.ID, []byte)) error {
	for _, w := range b.Wants {
		arrived(w.ID, []byte(w.Path))
	}
	return nil
}

func testPipeline(t *testing.T,
	answer func(context.Context, int, *Batch, func(object.ID, []byte)) error) (*Pipeline, *fakeRemote) {
	t.Helper()
	r := &fakeRemote{answer: answer}
	p := New(Config{Send: r.send, Cached: nothingCached, Deadline: 10 * time.Second, Log: zaptest.NewLogger(t)})
	t.Cleanup(p.Close)
	return p, r
}

func blobID(i int) object.ID {
	id, err := object.Hash(object.SHA1, object.Blob, fmt.Appendf(nil, "%d", i))
	if err != nil {
		panic(err)
	}
	return id
}

func want(i int) prioritize.Want {
	return prioritize.Want{ID: blobID(i), Path: fmt.Sprintf("dir/%d", i)}
}

func wants(from, to int, class prioritize.Class) []prioritize.Want {
	var list []prioritize.Want
	for i := from; i < to; i++ {
		w := want(i)
		w.Class = class
		list = append(list, w)
	}
	return list
}

func TestWaitersShareOneFlight(t *testing.T) {
	hold := make(chan struct{})
	p, r := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		<-hold
		return deliver(ctx, n, b, arrived)
	})
	const readers = 50
	got := make(chan string, readers)
	for range readers {
		go func() {
			data, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter})
			got <- fmt.Sprint(string(data), err)
		}()
	}
	await.Until(t, "all readers wait for one request", func() bool {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		f := p.table.pending[blobID(1)]
		return f != nil && f.waiters == readers
	})
	close(hold)
	for range readers {
		if s := <-got; s != "dir/1<nil>" {
			t.Fatalf("contents that a reader got: %q", s)
		}
	}
	if n := len(r.sent()); n != 1 {
		t.Errorf("got %d requests for one blob", n)
	}
}

func TestNeighboursTravelAlong(t *testing.T) {
	p, r := testPipeline(t, deliver)
	if _, err := p.Wait(context.Background(), want(0),
		Neighbours{wants(1, 33, prioritize.Sibling), HedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if b := r.sent(); len(b) != 1 || len(b[0]) != 33 || b[0][0].ID != blobID(0) {
		t.Errorf("got %d requests, the first with %d wants", len(b), len(b[0]))
	}
}

// Cancelling a reader does not affect others, and its want is not sent if no other reader needs it.
func TestInterruptedWaiterLeavesAlone(t *testing.T) {
	hold := make(chan struct{})
	p, _ := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		<-hold
		return deliver(ctx, n, b, arrived)
	})
	ctx, cancel := context.WithCancel(context.Background())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := p.Wait(ctx, want(1), Neighbours{Patience: HedgeAfter}); left <- err }()
	go func() {
		_, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter})
		stayed <- err
	}()
	await.Until(t, "both readers wait for one request", func() bool {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		f := p.table.pending[blobID(1)]
		return f != nil && f.waiters == 2
	})
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled waiter: got %v", err)
	}
	close(hold)
	if err := <-stayed; err != nil {
		t.Errorf("the other waiter: got %v", err)
	}
}

func TestForegroundOvertakesBackground(t *testing.T) {
	hold := make(chan struct{})
	p, r := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if b.background {
			<-hold
		}
		return deliver(ctx, n, b, arrived)
	})
	p.Queue(wants(0, 5000, prioritize.Source))
	await.Until(t, "every background sender has sent a request", func() bool { return len(r.sent()) == backgroundSenders })
	last := want(4999) // queued after thousands of others
	if _, err := p.Wait(context.Background(), last, Neighbours{Patience: HedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.sent()); n != backgroundSenders+1 {
		t.Errorf("the want that a reader waits for was sent as request %d", n)
	}
	close(hold)
}

// A blob that is late in a background response is requested again, alone.
func TestSlowBackgroundIsHedged(t *testing.T) {
	hold := make(chan struct{})
	p, r := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if b.background {
			<-hold
		}
		return deliver(ctx, n, b, arrived)
	})
	p.Queue(wants(0, 10, prioritize.Source))
	await.Until(t, "the background request is sent", func() bool { return len(r.sent()) == 1 })
	if _, err := p.Wait(context.Background(), want(3), Neighbours{Patience: HedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if b := r.sent(); len(b) != 2 || len(b[1]) != 1 {
		t.Errorf("got %d requests, the last for %d blobs", len(b), len(b[len(b)-1]))
	}
	close(hold)
}

func TestOneBadIDDoesNotFailTheOthers(t *testing.T) {
	bad := blobID(3)
	p, _ := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		for _, w := range b.Wants {
			if w.ID == bad {
				return fmt.Errorf("fetch: %w", transport.NotOurRef{ID: bad})
			}
		}
		return deliver(ctx, n, b, arrived)
	})
	if _, err := p.Wait(context.Background(), want(1),
		Neighbours{wants(2, 10, prioritize.Sibling), HedgeAfter}); err != nil {
		t.Errorf("wait for the valid blob: %v", err)
	}
	if _, err := p.Wait(context.Background(), want(3), Neighbours{Patience: HedgeAfter}); !errors.Is(err, ErrNotFound) {
		t.Errorf("wait for the unknown blob: got %v", err)
	}
}

func TestBrokenAnswersAreAskedForAgain(t *testing.T) {
	broken := errors.New("cut in the middle")
	p, r := testPipeline(t, func(ctx context.Context, n int, b *Batch, arrived func(object.ID, []byte)) error {
		if n == 1 {
			arrived(b.Wants[0].ID, nil)
			return broken
		}
		return deliver(ctx, n, b, arrived)
	})
	if _, err := p.Wait(context.Background(), want(1),
		Neighbours{wants(2, 4, prioritize.Sibling), HedgeAfter}); err != nil {
		t.Fatal(err)
	}
	for i := 2; i < 4; i++ {
		if _, err := p.Wait(context.Background(), want(i), Neighbours{Patience: HedgeAfter}); err != nil {
			t.Errorf("blob %d: %v", i, err)
		}
	}
	for _, w := range r.sent()[1] {
		if w.ID == blobID(1) {
			t.Error("a fetched blob was requested again")
		}
	}
}

func TestFailureIsFinalAfterSomeAttempts(t *testing.T) {
	down := errors.New("down")
	p, r := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error { return down })
	if _, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter}); !errors.Is(err, down) {
		t.Errorf("wait: got %v", err)
	}
	if n := len(r.sent()); n != maxAttempts {
		t.Errorf("attempts: got %d, want %d", n, maxAttempts)
	}
	if _, err := p.health.Failure(); !errors.Is(err, down) {
		t.Errorf("health: got %v", err)
	}
}

func TestRefusalIsNotRepeated(t *testing.T) {
	p, r := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error {
		return fmt.Errorf("fetch: %w", transport.ErrAuth)
	})
	if _, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter}); !errors.Is(err,
		transport.ErrAuth) {
		t.Errorf("wait: got %v", err)
	}
	if n := len(r.sent()); n != 1 {
		t.Errorf("attempts: got %d", n)
	}
}

func TestWaitEndsAtDeadline(t *testing.T) {
	r := &fakeRemote{answer: func(ctx context.Context, _ int, _ *Batch, _ func(object.ID, []byte)) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	p := New(Config{Send: r.send, Cached: nothingCached, Deadline: 20 * time.Millisecond, Log: zaptest.NewLogger(t)})
	t.Cleanup(p.Close)
	if _, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter}); !errors.Is(err, ErrDeadline) {
		t.Errorf("wait: got %v", err)
	}
}

func TestAnswerThatLeavesOutAWant(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *Batch, func(object.ID, []byte)) error { return nil })
	if _, err := p.Wait(context.Background(), want(1), Neighbours{Patience: HedgeAfter}); !errors.Is(err, ErrNotFound) {
		t.Errorf("wait: got %v", err)
	}
}

// While a store has readers, prefetches of other stores are delayed for a moment.
func TestHydrationStaysBackForReadersOfOtherStores(t *testing.T) {
	shared := new(Readers)
	a := New(Config{Send: (&fakeRemote{answer: deliver}).send, Cached: nothingCached, Deadline: time.Minute,
		Readers: shared, Log: zaptest.NewLogger(t)})
	defer a.Close()
	b := New(Config{Send: (&fakeRemote{answer: deliver}).send, Cached: nothingCached, Deadline: time.Minute,
		Readers: shared, Log: zaptest.NewLogger(t)})
	defer b.Close()
	may := func() bool {
		b.shared.mu.Lock()
		defer b.shared.mu.Unlock()
		b.pacer.lastPrefetch = time.Now() // a batch has just been sent
		return b.pacer.mayPrefetch()
	}
	if !may() {
		t.Error("a prefetch is delayed although no store has readers")
	}
	a.NoteReader()
	if may() {
		t.Error("a prefetch is not delayed although another store has readers")
	}
	shared.last.Store(time.Now().Add(-2 * activeTime).UnixNano())
	if !may() {
		t.Error("a prefetch is delayed although the last reader was long ago")
	}
}

package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/artifactfs/artifactfs/internal/harness/await"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// fakeRemote answers batches; a test may hold it or make it fail.
type fakeRemote struct {
	mu      sync.Mutex
	batches [][]prioritize.Want
	answer  func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error
}

func nothingHere(object.ID) bool { return false }

func (r *fakeRemote) send(ctx context.Context, b *batch, arrived func(object.ID, []byte)) error {
	r.mu.Lock()
	r.batches = append(r.batches, b.wants)
	n := len(r.batches)
	r.mu.Unlock()
	return r.answer(ctx, n, b, arrived)
}

func (r *fakeRemote) sent() [][]prioritize.Want {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches
}

func deliver(_ context.Context, _ int, b *batch, arrived func(object.ID, []byte)) error {
	for _, w := range b.wants {
		arrived(w.ID, []byte(w.Path))
	}
	return nil
}

func testPipeline(t *testing.T, answer func(context.Context, int, *batch, func(object.ID, []byte)) error) (*pipeline, *fakeRemote) {
	t.Helper()
	r := &fakeRemote{answer: answer}
	p := newPipeline(r.send, nothingHere, 10*time.Second, nil, zaptest.NewLogger(t))
	t.Cleanup(p.close)
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
	p, r := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		<-hold
		return deliver(ctx, n, b, arrived)
	})
	const readers = 50
	got := make(chan string, readers)
	for range readers {
		go func() {
			data, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter})
			got <- fmt.Sprint(string(data), err)
		}()
	}
	await.Until(t, "all readers wait for one request", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		f := p.flights[blobID(1)]
		return f != nil && f.waiters == readers
	})
	close(hold)
	for range readers {
		if s := <-got; s != "dir/1<nil>" {
			t.Fatalf("reader got %q", s)
		}
	}
	if n := len(r.sent()); n != 1 {
		t.Errorf("%d requests for one blob", n)
	}
}

func TestNeighboursTravelAlong(t *testing.T) {
	p, r := testPipeline(t, deliver)
	if _, err := p.wait(context.Background(), want(0), company{wants(1, 33, prioritize.Sibling), hedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if b := r.sent(); len(b) != 1 || len(b[0]) != 33 || b[0][0].ID != blobID(0) {
		t.Errorf("sent %d requests, the first of %d wants", len(b), len(b[0]))
	}
}

// A reader that gives up takes nobody else down, and its want is not sent if nobody else needs it.
func TestInterruptedWaiterLeavesAlone(t *testing.T) {
	hold := make(chan struct{})
	p, _ := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		<-hold
		return deliver(ctx, n, b, arrived)
	})
	ctx, cancel := context.WithCancel(context.Background())
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := p.wait(ctx, want(1), company{patience: hedgeAfter}); left <- err }()
	go func() { _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); stayed <- err }()
	await.Until(t, "both readers wait for one request", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		f := p.flights[blobID(1)]
		return f != nil && f.waiters == 2
	})
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted waiter got %v", err)
	}
	close(hold)
	if err := <-stayed; err != nil {
		t.Errorf("the other waiter got %v", err)
	}
}

func TestForegroundOvertakesBackground(t *testing.T) {
	hold := make(chan struct{})
	p, r := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		if b.background {
			<-hold
		}
		return deliver(ctx, n, b, arrived)
	})
	p.ask(wants(0, 5000, prioritize.Source))
	await.Until(t, "every background lane has sent a request", func() bool { return len(r.sent()) == backgroundLanes })
	last := want(4999) // queued behind thousands
	if _, err := p.wait(context.Background(), last, company{patience: hedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.sent()); n != backgroundLanes+1 {
		t.Errorf("the waiting want went out as request %d", n)
	}
	close(hold)
}

// A blob that a background answer is slow to bring is asked for once more, alone.
func TestSlowBackgroundIsHedged(t *testing.T) {
	hold := make(chan struct{})
	p, r := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		if b.background {
			<-hold
		}
		return deliver(ctx, n, b, arrived)
	})
	p.ask(wants(0, 10, prioritize.Source))
	await.Until(t, "the first request is sent", func() bool { return len(r.sent()) == 1 })
	if _, err := p.wait(context.Background(), want(3), company{patience: hedgeAfter}); err != nil {
		t.Fatal(err)
	}
	if b := r.sent(); len(b) != 2 || len(b[1]) != 1 {
		t.Errorf("%d requests, the last for %d blobs", len(b), len(b[len(b)-1]))
	}
	close(hold)
}

func TestOneBadIDDoesNotFailTheOthers(t *testing.T) {
	bad := blobID(3)
	p, _ := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		for _, w := range b.wants {
			if w.ID == bad {
				return fmt.Errorf("fetch: %w", transport.NotOurRef{ID: bad})
			}
		}
		return deliver(ctx, n, b, arrived)
	})
	if _, err := p.wait(context.Background(), want(1), company{wants(2, 10, prioritize.Sibling), hedgeAfter}); err != nil {
		t.Errorf("good blob: %v", err)
	}
	if _, err := p.wait(context.Background(), want(3), company{patience: hedgeAfter}); !errors.Is(err, ErrNotFound) {
		t.Errorf("bad blob: %v", err)
	}
}

func TestBrokenAnswersAreAskedForAgain(t *testing.T) {
	broken := errors.New("cut in the middle")
	p, r := testPipeline(t, func(ctx context.Context, n int, b *batch, arrived func(object.ID, []byte)) error {
		if n == 1 {
			arrived(b.wants[0].ID, nil)
			return broken
		}
		return deliver(ctx, n, b, arrived)
	})
	if _, err := p.wait(context.Background(), want(1), company{wants(2, 4, prioritize.Sibling), hedgeAfter}); err != nil {
		t.Fatal(err)
	}
	for i := 2; i < 4; i++ {
		if _, err := p.wait(context.Background(), want(i), company{patience: hedgeAfter}); err != nil {
			t.Errorf("blob %d: %v", i, err)
		}
	}
	for _, w := range r.sent()[1] {
		if w.ID == blobID(1) {
			t.Error("a blob that had arrived was asked for again")
		}
	}
}

func TestFailureIsFinalAfterSomeAttempts(t *testing.T) {
	down := errors.New("down")
	p, r := testPipeline(t, func(context.Context, int, *batch, func(object.ID, []byte)) error { return down })
	if _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); !errors.Is(err, down) {
		t.Errorf("got %v", err)
	}
	if n := len(r.sent()); n != maxAttempts {
		t.Errorf("%d attempts, want %d", n, maxAttempts)
	}
	if _, err := p.health(); !errors.Is(err, down) {
		t.Errorf("health is %v", err)
	}
}

func TestRefusalIsNotRepeated(t *testing.T) {
	p, r := testPipeline(t, func(context.Context, int, *batch, func(object.ID, []byte)) error {
		return fmt.Errorf("fetch: %w", transport.ErrAuth)
	})
	if _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); !errors.Is(err, transport.ErrAuth) {
		t.Errorf("got %v", err)
	}
	if n := len(r.sent()); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestWaitEndsAtDeadline(t *testing.T) {
	r := &fakeRemote{answer: func(ctx context.Context, _ int, _ *batch, _ func(object.ID, []byte)) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	p := newPipeline(r.send, nothingHere, 20*time.Millisecond, nil, zaptest.NewLogger(t))
	t.Cleanup(p.close)
	if _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); !errors.Is(err, ErrDeadline) {
		t.Errorf("got %v", err)
	}
}

func TestAnswerThatLeavesOutAWant(t *testing.T) {
	p, _ := testPipeline(t, func(context.Context, int, *batch, func(object.ID, []byte)) error { return nil })
	if _, err := p.wait(context.Background(), want(1), company{patience: hedgeAfter}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// A reader of one store keeps what nobody waits for in another back, for a moment.
func TestHydrationStaysBackForReadersOfOtherStores(t *testing.T) {
	shared := new(Readers)
	a := newPipeline((&fakeRemote{answer: deliver}).send, nothingHere, time.Minute, shared, zaptest.NewLogger(t))
	defer a.close()
	b := newPipeline((&fakeRemote{answer: deliver}).send, nothingHere, time.Minute, shared, zaptest.NewLogger(t))
	defer b.close()
	may := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.hydrated = time.Now() // a batch has just been sent
		return b.mayHydrate()
	}
	if !may() {
		t.Error("nobody reads, and it stays back")
	}
	a.readerWaits()
	if may() {
		t.Error("it does not stay back")
	}
	shared.last.Store(time.Now().Add(-2 * activeTime).UnixNano())
	if !may() {
		t.Error("it stays back for one who waits for long")
	}
}

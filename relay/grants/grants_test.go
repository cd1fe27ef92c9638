package grants

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

var (
	commit  = object.MustID("1111111111111111111111111111111111111111")
	another = object.MustID("2222222222222222222222222222222222222222")
	errNo   = errors.New("refused")
)

// clock is a time that a test sets.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1000, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func start(t *testing.T) (*Grants, *clock) {
	ctx, cancel := context.WithCancel(context.Background())
	g, c := New(ctx), &clock{}
	g.now = c.now
	t.Cleanup(func() { cancel(); g.Wait() })
	return g, c
}

func TestOnlyTheReaderWithAProofReads(t *testing.T) {
	g, c := start(t)
	refuse := func(context.Context) error { return errNo }
	mine, other := Reader{1}, Reader{2}
	g.Allow(mine, commit, c.now())
	for _, s := range []struct {
		reader Reader
		id     object.ID
		want   error
	}{{mine, commit, nil}, {mine, another, errNo}, {other, commit, errNo}} {
		if err := g.Check(t.Context(), s.reader, s.id, refuse); !errors.Is(err, s.want) {
			t.Errorf("reader %d, object %s: got %v, want %v", s.reader[0], s.id, err, s.want)
		}
	}
	c.advance(Valid)
	if err := g.Check(t.Context(), mine, commit, refuse); !errors.Is(err, errNo) {
		t.Errorf("after %s: got %v, want the git server's answer", Valid, err)
	}
	if err := g.Check(t.Context(), mine, commit, func(context.Context) error { return nil }); err != nil {
		t.Errorf("a refusal was kept: %v", err)
	}
}

func TestConcurrentChecksShareOneProof(t *testing.T) {
	g, _ := start(t)
	var calls atomic.Int32
	release := make(chan struct{})
	prove := func(context.Context) error {
		calls.Add(1)
		<-release
		return nil
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := g.Check(t.Context(), Reader{}, commit, prove); err != nil {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Check(ctx, Reader{}, commit, prove); !errors.Is(err, context.Canceled) {
		t.Errorf("check whose client has gone: got %v", err)
	}
	close(release)
	all.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("%d proofs for 21 checks, want 1", n)
	}
}

// A reader that is busy does not wait for later proofs, and is shut out when one fails.
func TestProofIsRenewedInTheBackground(t *testing.T) {
	g, c := start(t)
	g.Allow(Reader{}, commit, c.now())
	asked := make(chan struct{})
	answer := make(chan error)
	prove := func(context.Context) error {
		asked <- struct{}{}
		return <-answer
	}
	c.advance(renewAfter)
	if err := g.Check(t.Context(), Reader{}, commit, prove); err != nil {
		t.Fatalf("check with a proof of %s: %v", renewAfter, err)
	}
	<-asked
	answer <- errNo
	for g.running() {
		time.Sleep(time.Millisecond)
	}
	refuse := func(context.Context) error { return errNo }
	if err := g.Check(t.Context(), Reader{}, commit, refuse); !errors.Is(err, errNo) {
		t.Errorf("after a refused renewal: got %v", err)
	}
}

// running reports whether a proof is being made.
func (g *Grants) running() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.proofs {
		if p.running != nil {
			return true
		}
	}
	return false
}

func TestOldProofsAreForgotten(t *testing.T) {
	g, c := start(t)
	for i := range 3 * maxProofs {
		g.Allow(Reader{byte(i), byte(i >> 8)}, commit, c.now())
		c.advance(Valid / 100)
	}
	if len(g.proofs) > maxProofs {
		t.Errorf("%d proofs are stored, limit is %d", len(g.proofs), maxProofs)
	}
}

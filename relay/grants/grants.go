// Package grants records which readers have proved recently that they may read an object of a remote.
//
// A relay serves an object to a client only if the client may read the commit that contains it, which only the git
// server can decide. A *proof* is an answer of the git server to a request with the credential of the client: a listing
// of refs that names the commit, or a fetch of the commit alone. A proof is valid for the time Valid. Refusals are not
// recorded. The credential itself is not stored either: a Reader is a hash of the remote and of everything in the
// client's requests by which a git server could distinguish clients.
package grants

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// Valid is the time for which a proof is valid. It bounds the time for which a client whose access was revoked can
	// still read objects from the relay.
	Valid = 5 * time.Second
	// renewAfter is the age of a proof after which its next use starts a new proof in the background, so that a client
	// which reads continuously never waits.
	renewAfter = 2 * time.Second
	// proofTime is the maximum duration of a proof in the background.
	proofTime = 15 * time.Second
	// maxProofs is the number of recorded proofs above which those that are no longer valid are removed.
	maxProofs = 4096
)

// Reader is a hash of a remote and of the credential of a client.
type Reader [32]byte

// subject is a reader together with an object that it wants to read.
type subject struct {
	reader Reader
	id     object.ID
}

// proof is the recorded state of one subject.
type proof struct {
	at      time.Time     // time at which the request of the last proof was sent; zero if there is no proof
	running chan struct{} // closed when the proof that is being made has ended; nil if there is none
	err     error         // error of the last proof that failed; set before running is closed
}

// Grants records proofs. The zero value is not usable; call New. Its methods may be called from any goroutine.
type Grants struct {
	now func() time.Time
	ctx context.Context // context of the proofs in the background

	mu     sync.Mutex
	proofs map[subject]*proof
	made   int // number of requests that were sent only to get a proof
	work   sync.WaitGroup
}

// New returns a Grants whose proofs in the background end with ctx.
func New(ctx context.Context) *Grants {
	return &Grants{now: time.Now, ctx: ctx, proofs: map[subject]*proof{}}
}

// Wait waits for the proofs in the background. The context of New must have ended.
func (g *Grants) Wait() { g.work.Wait() }

// Made returns the number of requests that were sent only to get a proof.
func (g *Grants) Made() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made
}

// Allow records a proof: the git server has named an object to a reader, in the answer to a request that was sent at
// the time at.
func (g *Grants) Allow(r Reader, id object.ID, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.of(subject{r, id})
	if at.After(p.at) {
		p.at = at
	}
}

// of returns the recorded proof of a subject, and creates an empty one if there is none. The caller holds g.mu.
func (g *Grants) of(s subject) *proof {
	if p := g.proofs[s]; p != nil {
		return p
	}
	if len(g.proofs) >= maxProofs {
		for s, p := range g.proofs {
			if p.running == nil && g.now().Sub(p.at) >= Valid {
				delete(g.proofs, s)
			}
		}
	}
	p := &proof{}
	g.proofs[s] = p
	return p
}

// Check returns nil if a reader may read an object, and otherwise the error of prove. If no valid proof is recorded,
// Check calls prove, which sends a request to the git server. Concurrent calls for the same reader and object share one
// call of prove.
func (g *Grants) Check(ctx context.Context, r Reader, id object.ID, prove func(context.Context) error) error {
	s := subject{r, id}
	for {
		g.mu.Lock()
		p := g.of(s)
		age := g.now().Sub(p.at)
		if p.running == nil && age >= renewAfter {
			p.running = make(chan struct{})
			g.made++
			g.work.Add(1)
			go g.prove(s, p, prove)
		}
		running := p.running
		g.mu.Unlock()
		if age < Valid {
			return nil
		}
		select {
		case <-running:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		g.mu.Lock()
		err, valid := p.err, g.now().Sub(p.at) < Valid
		g.mu.Unlock()
		if valid {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// prove calls the function prove and records its result as the proof of a subject.
func (g *Grants) prove(s subject, p *proof, prove func(context.Context) error) {
	defer g.work.Done()
	ctx, cancel := context.WithTimeout(g.ctx, proofTime)
	defer cancel()
	start := g.now()
	err := prove(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	p.err = err
	if err == nil && start.After(p.at) {
		p.at = start
	} else if err != nil {
		p.at = time.Time{} // the proof ends, because the git server now refuses access that it has allowed before
	}
	close(p.running)
	p.running = nil
}

// Package grants records which credentials have shown to the git server within the last seconds that they may read an object of a remote.
//
// A relay serves an object to a client only if the client may read the commit that contains it, which only the git server can decide. A
// *proof* is an answer of the git server to a request with the credential of the client: a listing of refs that names the commit, or a
// fetch of the commit alone. A proof is valid for the time Valid. Refusals are not recorded. The credential itself is not stored either: a
// Reader is a hash of the remote and of everything in the client's requests by which a git server could distinguish clients.
package grants

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// Valid is the time for which a proof is valid. It bounds the time for which a client whose access was revoked can still read
	// objects from the relay.
	Valid = 5 * time.Second
	// renewAfter is the age of a proof after which a use of it starts a new one in the background, so that a client which reads all the
	// time does not wait.
	renewAfter = 2 * time.Second
	// proofTime is the maximum time of a proof in the background.
	proofTime = 15 * time.Second
	// maxProofs is the number of proofs above which those that are no longer valid are removed.
	maxProofs = 4096
)

// Reader is a hash of a remote and of the credential of a client.
type Reader [32]byte

// subject is a reader and an object.
type subject struct {
	reader Reader
	id     object.ID
}

// proof is what is known of a subject.
type proof struct {
	at      time.Time     // time of the last proof: that of the request, not of the answer
	running chan struct{} // closed when the proof that is being made has ended; nil if there is none
	err     error         // of the last proof that failed; set before running is closed
}

// Grants records proofs. The zero value is not usable; call New. Its methods may be called from any goroutine.
type Grants struct {
	now func() time.Time
	ctx context.Context // of proofs in the background

	mu     sync.Mutex
	proofs map[subject]*proof
	made   int // number of proofs that were made by requests of the relay's own
	work   sync.WaitGroup
}

// New returns a Grants whose proofs in the background end with ctx.
func New(ctx context.Context) *Grants {
	return &Grants{now: time.Now, ctx: ctx, proofs: map[subject]*proof{}}
}

// Wait waits for the proofs in the background. The context of New must have ended.
func (g *Grants) Wait() { g.work.Wait() }

// Made returns the number of requests that were made for a proof.
func (g *Grants) Made() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made
}

// Allow records that the git server has named an object to a reader, in the answer to a request that was sent at the time at.
func (g *Grants) Allow(r Reader, id object.ID, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.of(subject{r, id})
	if at.After(p.at) {
		p.at = at
	}
}

// of returns the proof of a subject. The caller holds g.mu.
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

// Check returns nil if a reader may read an object, and the error of prove otherwise. If no valid proof is recorded, it calls prove, which
// asks the git server; calls for the same reader and object share one call of prove.
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

// prove calls the function in the parameter and records its result.
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
		p.at = time.Time{} // the git server refuses now what it has allowed before
	}
	close(p.running)
	p.running = nil
}

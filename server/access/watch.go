package access

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// skew is the maximum difference between the clocks of two nodes.
const skew = time.Minute

// watch is one running transfer.
type watch struct{ end context.CancelCauseFunc }

// Watch returns a context that ends when the token is revoked, on this node or on another one, or expires. Its cause is
// then ErrInvalid. A revocation by Guard.Revoke takes effect at once, one on another node within about a second.
func (g *Guard) Watch(ctx context.Context, t records.Token) (context.Context, context.CancelFunc) {
	expires := func() {}
	if !t.Expires.IsZero() {
		ctx, expires = context.WithDeadlineCause(ctx, t.Expires, ErrInvalid)
	}
	ctx, end := context.WithCancelCause(ctx)
	w := &watch{end}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watched[t.ID] == nil {
		g.watched[t.ID] = map[*watch]bool{}
	}
	g.watched[t.ID][w] = true
	if g.stop == nil {
		var polling context.Context
		polling, g.stop = context.WithCancel(context.Background())
		go g.poll(polling)
	}
	return ctx, func() {
		end(nil)
		expires()
		g.forget(t.ID, w)
	}
}

// forget ends a watch. It also ends the look-ups if no transfer is left.
func (g *Guard) forget(id string, w *watch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watched[id], w)
	if len(g.watched[id]) == 0 {
		delete(g.watched, id)
	}
	if len(g.watched) == 0 && g.stop != nil {
		g.stop()
		g.stop = nil
	}
}

// Revoke revokes a token, and ends the transfers that use it.
func (g *Guard) Revoke(ctx context.Context, id string, events []records.Event, cause records.Cause) error {
	if err := g.tokens.Revoke(ctx, id, events, cause); err != nil {
		return err
	}
	g.Revoked(id)
	return nil
}

// Rotate revokes the token with the id old, ends the transfers that use it, and creates another one (see
// records.Tokens.Rotate).
func (g *Guard) Rotate(ctx context.Context, old string, next records.Token, events []records.Event,
	cause records.Cause) error {
	if err := g.tokens.Rotate(ctx, old, next, events, cause); err != nil {
		return err
	}
	g.Revoked(old)
	return nil
}

// Revoked ends the transfers that use tokens which have been revoked.
func (g *Guard) Revoked(ids ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		for w := range g.watched[id] {
			w.end(ErrInvalid)
		}
	}
}

// poll looks up the tokens that other nodes have revoked, until ctx ends. If the database does not answer, the
// transfers continue, because no node can revoke a token then.
func (g *Guard) poll(ctx context.Context) {
	tick := time.NewTicker(g.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ids, err := g.tokens.RevokedSince(ctx, time.Now().Add(-skew)); err == nil {
			g.Revoked(ids...)
		}
	}
}

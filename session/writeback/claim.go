package writeback

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
)

// plain states whether this session owns the plain names on a session remote: the names of branches and tags without a
// prefix. This is decided once for each session and session remote; see session.OwnerRef.
type plain string

const (
	plainUnknown plain = ""       // not decided yet
	plainOwn     plain = "own"    // this session writes refs/heads/ and refs/tags/
	plainOthers  plain = "others" // another session, or users, write refs/heads/ and refs/tags/
)

// claimer decides once for each session remote whether this session owns the plain names there.
type claimer struct {
	repo        *session.Repo
	conn        *connection
	unclaimable bool // whether the session remote has refused session.OwnerRef
}

// decide sets l.plain. If the session remote is empty, it first claims the plain names by pushing session.OwnerRef, and
// returns false; the caller then reads the refs again and calls decide again. The map all contains all refs of the
// session remote.
func (c *claimer) decide(ctx context.Context, push *thin.Push, all map[string]object.ID, l *ledger) (bool, error) {
	owner, err := session.OwnerBlob(c.repo.Format(), c.repo.Session())
	if err != nil {
		return false, err
	}
	switch there := all[session.OwnerRef]; {
	// This session has claimed the names before, but the ledger does not record the claim.
	case there == owner.ID:
		l.plain = plainOwn
		return true, nil
	// Another session has claimed the names, the session remote refuses claims, or other refs show that the names are in
	// use.
	case !there.IsZero(), c.unclaimable, c.conn.isOrigin(l.meta.Remote), !session.Claimable(l.meta.Session, all):
		l.plain = plainOthers
		return true, nil
	}
	// The blob is not reachable from refs of the Repo. Working keeps gc from removing it until it is pushed.
	defer c.repo.Working()()
	if err := c.repo.Write(ctx, []odb.Outgoing{owner}); err != nil {
		return false, err
	}
	results, err := c.conn.send(ctx, push, transport.PushRequest{
		Updates: []transport.RefUpdate{{Name: session.OwnerRef, New: owner.ID}},
		Pack:    packs.Of(c.repo, []object.ID{owner.ID}),
	}, thin.Load{})
	if err != nil {
		return false, err
	}
	var refused *transport.Rejected
	if errors.As(results[0], &refused) && refused.Kind == transport.RejectUnpack {
		return false, refused
	}
	// If another session has claimed the names first, or the ref is locked, the caller reads the refs and calls decide
	// again. Any other refusal is final.
	c.unclaimable = refused != nil && refused.Kind != transport.RejectMoved
	return false, nil
}

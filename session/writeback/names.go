package writeback

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
)

// plain records whether this session owns the names of branches and tags without a prefix ("plain names") on a session remote.
// This is decided once for each pair of session and session remote: see session.OwnerRef.
type plain string

const (
	plainUnknown plain = ""       // the owner is not decided yet
	plainOwn     plain = "own"    // this session writes refs/heads/ and refs/tags/
	plainOthers  plain = "others" // another session, or people, write refs/heads/ and refs/tags/
)

// decide sets l.plain, and claims the plain names if the session remote is empty. The map all holds the refs of the session
// remote. decide returns false if it has sent a claim; the caller then reads the refs again.
func (q *Queue) decide(ctx context.Context, push *thin.Push, all map[string]object.ID, l *ledger) (bool, error) {
	owner, err := session.OwnerBlob(q.o.Repo.Format(), q.o.Session)
	if err != nil {
		return false, err
	}
	switch there := all[session.OwnerRef]; {
	// This session has claimed the names before, but the ledger does not record the claim.
	case there == owner.ID:
		l.plain = plainOwn
		return true, nil
	// Another session has claimed the names, the session remote refuses claims, or other refs show that the names are in use.
	case !there.IsZero(), q.refusals.unclaimable, q.conn.isOrigin(l.meta.Remote), !session.Claimable(l.meta.Session, all):
		l.plain = plainOthers
		return true, nil
	}
	// No ref of the Repo reaches the blob. Working keeps gc from removing the blob until it is pushed.
	defer q.o.Repo.Working()()
	if err := q.o.Repo.Write(ctx, []odb.Outgoing{owner}); err != nil {
		return false, err
	}
	results, err := q.conn.send(ctx, push, transport.PushRequest{
		Updates: []transport.RefUpdate{{Name: session.OwnerRef, New: owner.ID}}, Pack: packs.Of(q.o.Repo, []object.ID{owner.ID}),
	}, thin.Load{})
	if err != nil {
		return false, err
	}
	var refused *transport.Rejected
	if errors.As(results[0], &refused) && refused.Kind == transport.RejectUnpack {
		return false, refused
	}
	// If another session has claimed the names first, or the ref is locked, the caller reads the refs and calls decide again. Any
	// other refusal is final.
	q.refusals.unclaimable = refused != nil && refused.Kind != transport.RejectMoved
	return false, nil
}

// local returns the refs to push, by their names on the session remote. It leaves out refs whose file cannot be
// read and then returns an error that wraps session.ErrBroken, so that the caller does not treat those refs as removed.
func (q *Queue) local(l *ledger) (map[string]object.ID, error) {
	refs, broken, err := q.o.Repo.AllRefs("refs/")
	if err != nil {
		return nil, err
	}
	if len(broken) > 0 {
		err = fmt.Errorf("read refs %s of the session: %w", strings.Join(broken, ", "), session.ErrBroken)
	}
	return sentOf(refs, l.layout()), err
}

// sentOf returns the values of the refs that this session pushes, by their names on the session remote. The parameter refs holds all
// refs of the Repo.
func sentOf(refs []packedrefs.Ref, layout session.Layout) map[string]object.ID {
	sent := map[string]object.ID{}
	for _, r := range refs {
		if there := layout.There(r.Name); session.IsUsers(r.Name) || isSent(there, layout) {
			sent[there] = r.ID
		}
	}
	return sent
}

// isSent reports whether the session pushes the ref whose name on the session remote is the parameter there.
func isSent(there string, layout session.Layout) bool {
	name := layout.Session
	_, users := layout.Here(there)
	return users || isFirst(there, name) || isLane(there, name) ||
		strings.HasPrefix(there, session.PinPrefix(name)) || strings.HasPrefix(there, session.KeptPrefix(name))
}

// isFirst reports whether a ref of the session called name can be pushed before the base commits, because the ref does not lead to
// base commits.
func isFirst(ref, name string) bool {
	return ref == session.MetaRef(name) || ref == session.TranscriptRef(name) || ref == session.FactsRef(name) ||
		ref == session.AnnotationsRef(name)
}

// isLane reports whether ref belongs to a lane of the session called name.
func isLane(ref, name string) bool { return strings.HasPrefix(ref, session.LanePrefix(name)) }

// isNotes reports whether ref is a notes ref.
func isNotes(ref string) bool { return strings.HasPrefix(ref, notesPrefix) }

// notesPrefix is the prefix of all notes refs.
const notesPrefix = "refs/notes/"

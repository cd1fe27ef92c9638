package writeback

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// plain records whose the plain names of branches and tags on a session remote are. It is decided once for a session and a
// session remote: see session.OwnerRef.
type plain string

const (
	plainUnknown plain = ""
	plainOwn     plain = "own"
	plainOthers  plain = "others"
)

// metaOf returns what a session is. Of one that has no metadata yet nothing is known but its name.
func metaOf(repo *session.Repo) (session.Meta, error) {
	m, _, err := session.ReadMeta(repo, repo.Session())
	if errors.Is(err, session.ErrNoMeta) || errors.Is(err, session.ErrNotMeta) {
		return session.Meta{Session: repo.Session(), Base: "unknown", Format: repo.Format().String()}, nil
	}
	return m, err
}

// layout returns under which names the user's refs are on the session remote.
func (l *ledger) layout(m session.Meta) session.Layout {
	return session.Layout{Session: m.Session, Branches: m.Branches, Own: l.plain == plainOwn}
}

func (q *Queue) layout(l *ledger) session.Layout { return l.layout(q.meta) }

// ofPeople reports whether the session remote is the mounted remote, whose branches are moved by git push alone.
func (q *Queue) ofPeople() bool {
	url := q.o.Remote.URL()
	return q.meta.Remote == url || q.o.Origin != nil && q.o.Origin.URL() == url
}

// decide finds out whether the plain names on the session remote are this session's, and claims them if the session remote
// is empty. all are its refs. False means that a claim was sent: the session remote has to be looked at again.
func (q *Queue) decide(ctx context.Context, push *thin.Push, all map[string]object.ID, l *ledger) (bool, error) {
	owner, err := session.OwnerBlob(q.o.Repo.Format(), q.o.Session)
	if err != nil {
		return false, err
	}
	switch there := all[session.OwnerRef]; {
	case there == owner.ID:
		l.plain = plainOwn
		return true, nil
	case !there.IsZero(), q.unclaimable, q.ofPeople(), !session.Claimable(q.meta, all):
		l.plain = plainOthers
		return true, nil
	}
	defer q.o.Repo.Working()()
	if err := q.o.Repo.Write(ctx, []odb.Outgoing{owner}); err != nil {
		return false, err
	}
	results, err := q.sendPush(ctx, push, transport.PushRequest{
		Updates: []transport.RefUpdate{{Name: session.OwnerRef, New: owner.ID}}, Pack: packer(q.o.Repo, []object.ID{owner.ID}),
	}, thin.Load{})
	if err != nil {
		return false, err
	}
	var refused *transport.Rejected
	if errors.As(results[0], &refused) && refused.Kind == transport.RejectUnpack {
		return false, refused
	}
	// Moved: another session was quicker, or has it locked. Any other refusal is for good.
	q.unclaimable = refused != nil && refused.Kind != transport.RejectMoved
	return false, nil
}

// local returns the refs that are to be on the session remote, by their names there. One that is broken is not among them, and
// an error says so: it was not removed.
func (q *Queue) local(l *ledger) (map[string]object.ID, error) {
	refs, broken, err := q.o.Repo.AllRefs("refs/")
	if err != nil {
		return nil, err
	}
	if len(broken) > 0 {
		err = fmt.Errorf("read %s of the session: %w", strings.Join(broken, ", "), session.ErrBroken)
	}
	return sentOf(refs, q.layout(l)), err
}

// sentOf returns those of a session's refs that are to be on the session remote, by their names there.
func sentOf(refs []packedrefs.Ref, layout session.Layout) map[string]object.ID {
	sent := map[string]object.ID{}
	for _, r := range refs {
		if there := layout.There(r.Name); isUsers(r.Name) || isSent(there, layout) {
			sent[there] = r.ID
		}
	}
	return sent
}

// isSent reports whether a name on the session remote is that of a ref which the session sends.
func isSent(there string, layout session.Layout) bool {
	name := layout.Session
	_, users := layout.Here(there)
	return users || isFirst(there, name) || isLane(there, name) ||
		strings.HasPrefix(there, session.PinPrefix(name)) || strings.HasPrefix(there, session.KeptPrefix(name))
}

// isFirst says whether a ref stands on nothing of the mounted remote's.
func isFirst(ref, name string) bool {
	return ref == session.MetaRef(name) || ref == session.TranscriptRef(name) || ref == session.FactsRef(name)
}

func isLane(ref, name string) bool { return strings.HasPrefix(ref, session.LanePrefix(name)) }

func isNotes(ref string) bool { return strings.HasPrefix(ref, notesPrefix) }

const notesPrefix = "refs/notes/"

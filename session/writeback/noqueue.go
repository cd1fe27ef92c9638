package writeback

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// The functions of this file are for callers that have no Queue.

// Look returns the status of a session remote without a Queue, from the ledger that the last Queue has written. remote
// is the URL of the session remote without secrets.
func Look(repo *session.Repo, remote string) (Status, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return Status{}, err
	}
	refs, err := repo.Refs("refs/")
	if err != nil {
		return Status{}, err
	}
	layout := l.layout()
	return Status{Mode: l.mode, Traffic: l.traffic, LastSync: l.synced, Pending: l.pending(sentOf(refs, layout)),
		Layout: layout}, nil
}

// Mend repairs refs of a session's Repo whose files are broken, and returns them. It takes their object ids from the
// ledger. remote is the URL of the session remote without secrets, or "" if the Repo is the session remote.
func Mend(ctx context.Context, repo *session.Repo, remote string) ([]session.Mended, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return nil, err
	}
	return repo.MendRefs(ctx, l.known)
}

// Adopt writes a ledger for a Repo whose refs were fetched from the session remote. It is called before the Queue of
// the Repo is created, so that the Queue treats later changes of the refs as changes of this session. refs contains the
// fetched object ids, and asked those of pushes without an answer; both are maps by the name of the ref in the Repo.
// remote is the URL of the session remote without secrets.
func Adopt(repo *session.Repo, remote string, layout session.Layout, refs, asked map[string]object.ID) error {
	l := newLedger(remote)
	// If the session does not own the branch and tag names without a prefix, l.plain stays plainUnknown, and the first
	// round decides whether the session may use these names.
	if layout.Own {
		l.plain = plainOwn
	}
	for name, id := range refs {
		l.refs[layout.There(name)] = remoteRef{acked: id}
	}
	for name, id := range asked {
		l.refs[layout.There(name)] = remoteRef{acked: refs[name], sent: []object.ID{id}}
	}
	return l.write(repo)
}

// Ahead changes one ref on the session remote from old to new, for callers that cannot wait for a Queue. Only this
// session may write the ref. The caller has opened the push. Ahead returns an error that wraps ErrMoved if the ref does
// not point to old, or is locked. After any other error it is unknown whether the ref was changed; the caller then
// passes new to Adopt in the map asked.
func Ahead(ctx context.Context, repo *session.Repo, push *thin.Push, ref string, old, new object.ID) error {
	had, err := objects.Reached(ctx, repo, []object.ID{old})
	if err != nil {
		return err
	}
	// The push sends only the objects that are not reachable from old.
	h, err := objects.Select(ctx, repo, []object.ID{new}, had)
	if err != nil {
		return err
	}
	req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: ref, Old: old, New: new}}}
	if len(h.IDs) > 0 {
		req.Pack = packs.Of(repo, h.IDs)
	}
	results, err := push.Send(ctx, req, thin.Load{})
	if err != nil {
		return err
	}
	var refused *transport.Rejected
	if errors.As(results[0], &refused) && refused.Kind == transport.RejectMoved {
		return fmt.Errorf("push %s: %w", ref, ErrMoved)
	}
	return results[0]
}

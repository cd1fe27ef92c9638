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

// Ahead moves one ref on the session remote from the value old to the value new, for callers that cannot wait for a Queue. Only
// this session may write the ref. The caller has opened the push. Ahead returns ErrMoved if the ref has another value than old,
// or is locked. After any other error it is unknown whether the ref was moved; the caller then passes the value new to Adopt, in
// the map asked.
func Ahead(ctx context.Context, repo *session.Repo, push *thin.Push, ref string, old, new object.ID) error {
	had, err := objects.Reached(ctx, repo, []object.ID{old})
	if err != nil {
		return err
	}
	// The push sends only the objects that the old value does not reach.
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

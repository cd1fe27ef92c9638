package writeback

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Ahead moves one ref of the session's own on the session remote, by a push that somebody has opened, for who cannot wait for
// a Queue. ErrMoved: it is not old any more, or could not be moved for a moment. After any other error it is open whether it
// has moved; Adopt has the Queue find out.
func Ahead(ctx context.Context, repo *session.Repo, push *thin.Push, ref string, old, new object.ID) error {
	had, err := hadOf(ctx, repo, []object.ID{old})
	if err != nil {
		return err
	}
	h, err := newHaul(ctx, repo, []object.ID{new}, had)
	if err != nil {
		return err
	}
	req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: ref, Old: old, New: new}}}
	if len(h.objects) > 0 {
		req.Pack = packer(repo, h.objects)
	}
	results, err := push.Send(ctx, req, thin.Load{})
	if err != nil {
		return err
	}
	var refused *transport.Rejected
	if errors.As(results[0], &refused) && refused.Kind == transport.RejectMoved {
		return fmt.Errorf("%s: %w", ref, ErrMoved)
	}
	return results[0]
}

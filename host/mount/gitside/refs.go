package gitside

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
)

// listTime is the maximum time for which the creation of a git directory waits for the list of the remote's refs, and
// listTimeLocal the same if nothing was fetched for the mount, so that the remote may be unreachable. Later, the refs
// are fetched with the history.
const (
	listTime      = 10 * time.Second
	listTimeLocal = 2 * time.Second
)

// refs returns the refs of the remote that git can use before the history is fetched, the remote's default branch, and
// the commits whose parents are missing. If the refs cannot be listed, it logs this and returns none.
func (s *Side) refs(ctx context.Context,
	snap *fetch.Snapshot) (refs []packedrefs.Ref, head string, shallow []object.ID) {
	if s.Listing == nil || !s.Mount.Store.Reachable() {
		return nil, "", nil
	}
	limit := listTime
	if snap.Local {
		limit = listTimeLocal
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	refs, head, err := s.Listing.Here(ctx, snap.Commit)
	if err != nil {
		s.Log.Info("refs of the remote are fetched later, with the history", zap.String("dir", s.Mount.Dir), zap.Error(err))
		return nil, "", nil
	}
	return refs, head, s.Mount.Store.Boundary()
}

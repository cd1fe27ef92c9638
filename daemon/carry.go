package daemon

import (
	"context"
	"sync"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// carry is what carries a mount's work away: it makes points of the working tree, has the user's commits follow, and
// waits for both to be on the session remote. A mount that is not written to has one that does nothing.
type carry struct {
	mount *mount

	mu      sync.Mutex
	options control.SessionOptions // what is in force; its remote may hold a secret
	failure error                  // of the last try to make a point; nil: it went well
}

// point makes a point of the working tree as it is now. made is false if nothing has changed since the last one, which is
// given then.
func (c *carry) point(ctx context.Context, reason session.Reason, message string) (p session.Point, made bool, err error) {
	return session.Point{}, false, errNotYet
}

package writeback

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/session"
)

// CarrierOptions describe a Carrier.
type CarrierOptions struct {
	Repo     func() (*session.Repo, error) // makes it; called when there is something to carry, so once or never
	Session  string
	GitDir   string // of the mount
	Dir      string // where it keeps what it has carried: the mount's home
	Store    *fetch.Store
	Embedded bool        // the Repo is the session remote: what stock git needs to clone it is brought there
	Failed   func(error) // is told of failures, and of nil after them; may be nil
	Log      *zap.Logger // may be nil
}

// Carrier brings branches, tags and notes of a mount's git directory into the session's Repo, with the objects that were
// made there, as they move.
type Carrier struct{}

// NewCarrier begins to watch. The refs as they are now are brought in the background.
func NewCarrier(o CarrierOptions) (*Carrier, error) { return nil, errors.ErrUnsupported }

// Flush returns when the refs that were there when it was called are in the Repo.
func (c *Carrier) Flush(ctx context.Context) error { return errors.ErrUnsupported }

// Failure is why the last try has failed; nil: it has not.
func (c *Carrier) Failure() error { return nil }

// Close ends the watch.
func (c *Carrier) Close() error { return nil }

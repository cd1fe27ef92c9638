package writeback

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

// QueueOptions describe a Queue.
type QueueOptions struct {
	Repo    *session.Repo
	Session string
	Dir     string            // where it keeps what the session remote has acknowledged: the mount's home
	Remote  *transport.Remote // session remote; nil: the Repo is that. It stays the caller's to close, after the Queue
	Origin  *transport.Remote // mounted remote, asked for the base if the session remote lacks it
	Store   *fetch.Store      // of the mounted remote; nil is allowed
	Taken   func(Taken)       // is told, from a goroutine of the Queue, when a ref of the session's own was moved by others; may be nil
	Log     *zap.Logger       // may be nil
}

// Queue brings a Repo's refs to the session remote, as they move.
type Queue struct{}

// NewQueue goes on where the Queue before it on the same Dir has stopped. It asks nothing of the network by itself but
// from goroutines of its own.
func NewQueue(o QueueOptions) (*Queue, error) { return nil, errors.ErrUnsupported }

// Status is cheap.
func (q *Queue) Status() Status { return Status{} }

// Acknowledged is what the session remote has of a ref, as far as is known; zero: nothing.
func (q *Queue) Acknowledged(ref string) object.ID { return object.ID{} }

// Sync returns when the session remote has all refs that the Repo had when it was called, or newer ones, and has been
// asked whether it really does. What cannot be there because of others (moved, refused) ends it with an error that says so.
// While the remote cannot be reached it tries again, at once at first, until ctx ends, and then says why.
func (q *Queue) Sync(ctx context.Context, progress func(Status)) error { return errors.ErrUnsupported }

// Send sends these refs now, before anything else, and tells of each whether the session remote has it: ErrMoved,
// ErrRefused, or why it cannot be reached. It tries once.
func (q *Queue) Send(ctx context.Context, refs ...string) error { return errors.ErrUnsupported }

// Wake says that something has changed outside of the Repo: a new token, a network that is back. What waits tries at once.
func (q *Queue) Wake() {}

// Close ends what is under way. Nothing is lost by that.
func (q *Queue) Close() error { return nil }

package mount

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/mount/turns"
	"github.com/artifactfs/artifactfs/internal/collector"
)

// behindWait is the maximum time for which background work of a mount waits for the takeover of other mounts. git
// commands wait for the same time.
const behindWait = time.Second

// succession connects a mount with the process that served it before this one, and with the process that may serve it
// next.
//
//	started by this process   begin --> handed over to a successor, or drop
//	taken over                inherited -- Succeed --> done -- turn of the mount --> turned --> as above
//
// The methods may be called from any goroutine, unless they say otherwise.
type succession struct {
	takeover.Handover                    // stores state and descriptors for a successor
	inherited         takeover.Inherited // descriptors of the predecessor that are not in use yet
	done              chan struct{}      // closed when the takeover has ended; nil: this process has started the mount
	turned            chan struct{}      // closed when the mount has had its turn after a takeover; see catchUp
}

// inherit returns the succession of a mount whose predecessor has died. k contains the state that the predecessor has
// stored, and in contains its descriptors.
func inherit(k takeover.Handover, in takeover.Inherited) *succession {
	return &succession{Handover: k, inherited: in, done: make(chan struct{}), turned: make(chan struct{})}
}

// takenOver reports whether another process has started the mount.
func (s *succession) takenOver() bool { return s.done != nil }

// await waits until the takeover of the mount has ended, successfully or not. It returns at once if the mount was
// started by this process. If ctx ends first, it returns the error of ctx.
func (s *succession) await(ctx context.Context) error {
	if !s.takenOver() {
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitOthers delays the background work of a mount that was taken over. File-system calls in a mount block until the
// mount is served, so awaitOthers waits until all mounts of the same takeover are served, which closes the channel
// served, but at most for the time behindWait. For a mount that was not taken over, it returns at once.
func (s *succession) awaitOthers(ctx context.Context, served <-chan struct{}) {
	if !s.takenOver() {
		return
	}
	select {
	case <-served:
	case <-time.After(behindWait):
	case <-ctx.Done():
	}
}

// catchUp waits until a mount that was taken over may open its session and push what is not pushed: no program waits
// for that. The function done, which the caller must call once or more often, ends the turn and closes turned.
// Meanwhile, garbage is collected less often.
func (s *succession) catchUp(ctx context.Context, t *turns.Turns) (done func()) {
	ended, relaxed := t.CatchUp(ctx), collector.Relax()
	return sync.OnceFunc(func() {
		ended()
		relaxed()
		close(s.turned)
	})
}

// drop releases the descriptors of the mount, here and in the keeper, so that nothing of it is left for a successor.
// Only the goroutine that ends the mount may call it.
func (s *succession) drop() {
	s.inherited.Close()
	s.Drop()
}

package takeover

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/host/mount/turns"
	"github.com/artifactfs/artifactfs/internal/collector"
)

// maxTakeoverWait is the maximum time for which background work of a mount waits until other mounts are taken over. Git
// commands wait for the same time.
const maxTakeoverWait = time.Second

// Succession connects a mount with the process that served it before this one, and with the process that may serve it
// next.
//
//	started by this process   NewSuccession -- Begin --> handed over to a successor, or Release
//	taken over                SuccessionOf -- End --> done -- turn of the mount --> turned --> as above
//
// The methods may be called from any goroutine, unless they say otherwise.
type Succession struct {
	Handover            // passes state and descriptors to a successor
	Inherited Inherited // descriptors of the predecessor that are not in use yet

	done   chan struct{} // closed when the takeover has ended; nil if this process has started the mount
	turned chan struct{} // closed when the mount has had its turn after a takeover; see CatchUp
}

// NewSuccession returns the Succession of a mount that this process starts. Its Handover does nothing until it is set
// to the result of Begin.
func NewSuccession() *Succession { return &Succession{} }

// SuccessionOf returns the Succession of a mount whose predecessor has died. k has the state that the predecessor has
// stored, and in has its descriptors.
func SuccessionOf(k Handover, in Inherited) *Succession {
	return &Succession{Handover: k, Inherited: in, done: make(chan struct{}), turned: make(chan struct{})}
}

// End records that the takeover of the mount has ended, successfully or not.
func (s *Succession) End() { close(s.done) }

// Turned returns a channel that is closed when the mount has had its turn after a takeover, or nil if this process has
// started the mount.
func (s *Succession) Turned() <-chan struct{} { return s.turned }

// TakenOver reports whether an earlier process has started the mount.
func (s *Succession) TakenOver() bool { return s.done != nil }

// Await waits until the takeover of the mount has ended, successfully or not. It returns at once if the mount was
// started by this process. If ctx ends first, it returns the error of ctx.
func (s *Succession) Await(ctx context.Context) error {
	if !s.TakenOver() {
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AwaitOthers delays the background work of a mount that was taken over, because programs wait for the other mounts of
// the same takeover: it waits until all of them are served, which closes the channel served, but at most for
// maxTakeoverWait. For a mount that was not taken over, it returns at once.
func (s *Succession) AwaitOthers(ctx context.Context, served <-chan struct{}) {
	if !s.TakenOver() {
		return
	}
	select {
	case <-served:
	case <-time.After(maxTakeoverWait):
	case <-ctx.Done():
	}
}

// CatchUp waits until a mount that was taken over may open its session and push what is not pushed, because no program
// waits for that. The function done, which the caller must call at least once, ends the turn and closes turned. Until
// then, garbage is collected less often.
func (s *Succession) CatchUp(ctx context.Context, t *turns.Turns) (done func()) {
	ended, relaxed := t.CatchUp(ctx), collector.Relax()
	return sync.OnceFunc(func() {
		ended()
		relaxed()
		close(s.turned)
	})
}

// Release closes the descriptors of the mount and removes them from the keeper, so that a successor does not find the
// mount. Only the goroutine that ends the mount may call it.
func (s *Succession) Release() {
	s.Inherited.Close()
	s.Drop()
}

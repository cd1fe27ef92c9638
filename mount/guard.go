package mount

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// errFault reports a panic in the background work of a mount.
var errFault = errors.New("the daemon failed inside; its log says where")

// behind runs work in a goroutine of the mount; finish waits for it. A panic in work is recorded as a failure in the mount's
// status, and the files of the mount are still served. If the panic killed the worker, the successor would run the same work and
// probably die too.
func (m *Mount) behind(what string, work func()) {
	m.work.Go(func() {
		m.note(what, m.guarded(what, func() error {
			work()
			return nil
		}))
	})
}

// guarded calls work and returns its error. It turns a panic into an error that wraps errFault, and logs the stack with the
// message what.
func (m *Mount) guarded(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			m.host.Log.Error(what+" panicked", zap.String("dir", m.Dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

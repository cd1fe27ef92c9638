package daemon

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// errFault reports a panic in the background work of a mount.
var errFault = errors.New("the daemon failed inside; its log says where")

// behind runs work in a goroutine of the mount, for which finish waits. A panic in work becomes a failure of the mount in its
// status, and its files are served as before. If the worker died of the panic instead, its successor would run the same work
// and die too.
func (m *mount) behind(what string, work func()) {
	m.work.Go(func() {
		m.note(what, m.guarded(what, func() error {
			work()
			return nil
		}))
	})
}

// guarded calls work. It turns a panic into an error that wraps errFault, and logs the stack under the name what.
func (m *mount) guarded(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			m.daemon.log.Error(what+" panicked", zap.String("dir", m.dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

package daemon

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// errFault reports a panic in the work behind one mount.
var errFault = errors.New("the daemon failed inside; its log says where")

// behind runs work in a goroutine of the mount, which finish waits for. A panic in it becomes a failure of the mount, whose files are
// served as before: a worker that died of it would meet the same fault again.
func (m *mount) behind(what string, work func()) {
	m.work.Go(func() {
		m.note(what, m.guarded(what, func() error {
			work()
			return nil
		}))
	})
}

// guarded runs work and returns a panic in it as errFault.
func (m *mount) guarded(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			m.daemon.log.Error(what+" panicked", zap.String("dir", m.dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

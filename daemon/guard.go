package daemon

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// errFault is a panic in what goes on behind one mount.
var errFault = errors.New("the daemon failed inside; its log says where")

// behind does what goes on behind the mount. A fault in it is told as the mount's, whose files are served as before, and so
// are all others: a worker that died of it would find the same again.
func (m *mount) behind(what string, work func()) {
	m.work.Go(func() {
		m.note(what, m.guarded(what, func() error {
			work()
			return nil
		}))
	})
}

// guarded makes an error of a panic.
func (m *mount) guarded(what string, work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFault, p)
			m.daemon.log.Error(what+" panicked", zap.String("dir", m.dir), zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return work()
}

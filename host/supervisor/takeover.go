package supervisor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// upgrade is an upgrade in progress. It lasts from the request until a worker of the new executable serves, or until
// the upgrade is abandoned.
type upgrade struct {
	path     string   // path of the new executable
	file     *os.File // the open executable, which stays usable if the path is replaced or removed
	ordered  bool     // whether a worker of the new executable has received the order to serve
	failures int      // number of workers of the new executable that ended before they served
}

// exe returns a path by which the new executable can be opened. The path stays valid even if the file is replaced or
// removed.
func (u *upgrade) exe() string { return proc.FDPath(u.file) }

// orderStart sends the order to serve to the spare worker, or to a new worker. If no worker can be started, orderStart
// schedules another attempt and returns the error.
func (s *supervisor) orderStart() error {
	w, err := s.successor()
	if err != nil {
		s.Log.Error("start worker", zap.Error(err))
		s.reason = err.Error()
		s.failures.unserved++
		s.retry()
		return err
	}
	s.worker, w.orderedAt, w.silence = w, time.Now(), 0
	if s.begun {
		s.count++
	}
	s.begun = true
	start := keeper.Start{
		Reason: s.reason, Count: s.count, Hung: s.hung, Managed: s.manager.keeps(), Supervisor: os.Getpid(),
		UpgradeFailed: s.upgradeFailed,
	}
	// The descriptors are sent before the order, so the worker has all of them when it starts to serve.
	err = w.conn.SendDescriptors(s.store)
	if err == nil {
		err = w.conn.Send(start.Message())
	}
	// The daemon was told to stop while no worker served, so the new worker takes over only in order to unmount
	// everything.
	if err == nil && s.exit.begun {
		err = w.conn.SendKey(keeper.Stop, "1")
	}
	// EPIPE means that the worker has ended, and a later event reports this end
	if err != nil && !errors.Is(err, unix.EPIPE) {
		s.kill(w, err.Error())
	}
	return nil
}

// successor returns the spare worker, or starts a worker. During an upgrade it starts the worker from the new
// executable.
func (s *supervisor) successor() (*worker, error) {
	if w := s.next; w != nil && w.killed == "" {
		s.next = nil
		if s.upgrade != nil {
			s.upgrade.ordered = true
		}
		return w, nil
	}
	if u := s.upgrade; u != nil {
		return s.start(u.exe(), u.path)
	}
	return s.start(s.program.path, s.Executable)
}

// ended handles the end of the worker w, which served: it starts the takeover. If end is true, the supervisor must
// instead exit with the exit code in the result code.
func (s *supervisor) ended(w *worker) (code int, end bool) {
	// Record w as s.last, because its exit status may arrive after the connection has ended.
	s.worker, s.last, s.timers.spare = nil, w, nil
	switch {
	case w.stopping && s.store.hasMounts():
		return s.giveUp("worker exited although it served mounts"), true
	case w.stopping:
		return w.code(), true
	case s.exit.leaving:
		return s.exitStored()
	case !s.served && !s.store.hasMounts():
		// The worker has never served, and has already reported why it refuses to serve.
		return w.code(), true
	}
	s.reason = w.end()
	s.Log.Warn("replace worker that has exited", zap.Int("pid", w.pid()), zap.String("why", s.reason))
	w.endedAt = time.Now()
	switch {
	case w.readyAt.IsZero() && w.hung: // the watchdog has killed the worker, so the next worker gets a longer time limit
		s.failUpgrade()
	case w.readyAt.IsZero():
		s.failures.unserved++
		s.failUpgrade()
	default:
		s.failures.countHasty(w)
	}
	if s.upgrade != nil && !s.upgrade.ordered && (s.next == nil || !s.next.waiting) {
		s.abandonUpgrade("daemon had to be restarted: " + s.reason)
	}
	if s.exit.begun {
		if s.exit.deaths++; s.exit.deaths >= stopTries {
			return s.giveUp("worker died while it unmounted: " + s.reason), true
		}
	}
	// Neither new workers nor pauses have helped. Detach the mounts, so that their users receive errors instead of
	// waiting.
	if s.failures.tooMany() {
		return s.giveUp(fmt.Sprintf("%d workers failed one after the other, the last one: %s", s.failures.shown(), s.reason)),
			true
	}
	s.retry()
	return 0, false
}

// recordReason records how the previous worker w ended. It is called if the exit status of w arrived only after the
// takeover had begun.
func (s *supervisor) recordReason(w *worker) {
	if w.killed != "" {
		return
	}
	s.reason = w.end()
	if !w.readyAt.IsZero() {
		s.failures.countHasty(w)
	}
	if s.worker != nil {
		s.worker.conn.SendKey(keeper.Reason, s.reason)
	}
}

// retry starts the next worker at once, or after a pause that grows with each failure.
func (s *supervisor) retry() {
	pause := s.failures.pause()
	if pause == 0 {
		s.orderStart()
		return
	}
	s.timers.pause = time.After(pause)
}

// scheduleSpare schedules the start of a spare worker, if there are mounts that it could take over.
func (s *supervisor) scheduleSpare() {
	// During an upgrade, a worker of the new executable is already waiting. A worker that does not serve yet needs the
	// resources of the machine itself, so no spare is started before it serves.
	if s.Spare && s.next == nil && s.timers.spare == nil && !s.exit.begun && s.upgrade == nil && s.store.hasMounts() &&
		s.worker != nil && !s.worker.readyAt.IsZero() {
		s.timers.spare = time.After(spareTime)
	}
}

// prepare starts a spare worker, unless the conditions that scheduleSpare checked have changed.
func (s *supervisor) prepare() {
	if s.next != nil || s.upgrade != nil || s.exit.begun || s.worker == nil || !s.store.hasMounts() {
		return
	}
	w, err := s.start(s.program.path, s.Executable)
	if err != nil {
		// scheduleSpare schedules another attempt when a spare is needed next
		s.Log.Warn("start spare worker", zap.Error(err))
		return
	}
	s.next = w
}

// lostNext handles the end of the worker w, which was started but had not received the order to serve.
func (s *supervisor) lostNext(w *worker) {
	if s.upgrade == nil {
		return // after the next takeover, another spare is started
	}
	why := w.killed
	if why == "" {
		why = "worker exited before it was ready; the log has its output"
	}
	s.abandonUpgrade(why)
}

// beginUpgrade starts a worker of another executable, which has the given path and the open descriptor fd. The present
// worker is killed later, when the new worker is ready for the order to serve.
func (s *supervisor) beginUpgrade(path string, fd int) {
	file, err := moveDescriptor(fd, path)
	// The worker passes the failure on to the caller of the upgrade.
	if err != nil {
		s.sendFailure("open executable: " + err.Error())
		return
	}
	if s.upgrade != nil || s.exit.begun {
		file.Close()
		s.sendFailure("another upgrade is in progress, or the daemon is exiting")
		return
	}
	s.killNext()
	s.upgrade, s.upgradeFailed = &upgrade{path: path, file: file}, ""
	w, err := s.start(s.upgrade.exe(), path)
	if err != nil {
		s.abandonUpgrade(err.Error())
		return
	}
	s.Log.Info("upgrading daemon", zap.String("to", path), zap.Int("pid", w.process.Pid))
	s.next = w
}

// moveDescriptor moves the descriptor fd to a number of at least firstFree, and returns it as a file. The start of a
// child process moves the descriptors of the child to low numbers before the kernel opens the executable by the number
// of fd, so a low number would by then belong to another descriptor.
func moveDescriptor(fd int, name string) (*os.File, error) {
	defer unix.Close(fd)
	up, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFree)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(up), name), nil
}

// firstFree is a descriptor number that is higher than those of all descriptors that a child process inherits.
const firstFree = 100

// killNext kills the worker that was started but has not received the order to serve, if there is one.
func (s *supervisor) killNext() {
	if w := s.next; w != nil {
		s.next = nil
		s.kill(w, "not needed")
	}
	s.timers.spare = nil
}

// abandonUpgrade ends an upgrade without success, and continues with the old executable. It does nothing if there is no
// upgrade.
func (s *supervisor) abandonUpgrade(why string) {
	u := s.upgrade
	if u == nil {
		return
	}
	s.upgrade = nil
	s.killNext()
	u.file.Close()
	s.upgradeFailed = fmt.Sprintf("upgrade to %s: %s", u.path, why)
	s.Log.Error("undo upgrade", zap.String("to", u.path), zap.String("why", why))
	s.sendFailure(s.upgradeFailed)
	s.scheduleSpare()
}

// sendFailure sends the reason why an upgrade failed to the worker, which reports it to the user.
func (s *supervisor) sendFailure(why string) {
	if s.worker != nil {
		// If the message cannot be sent, the worker is ending, and its successor learns the reason from orderStart.
		s.worker.conn.SendKey(keeper.UpgradeFailed, why)
	}
}

// failUpgrade counts a worker of the new executable that ended before it served. After upgradeTries such workers, the
// old executable is used again at once.
func (s *supervisor) failUpgrade() {
	u := s.upgrade
	if u == nil || !u.ordered {
		return
	}
	if u.failures++; u.failures >= upgradeTries {
		s.failures.unserved = 0
		s.abandonUpgrade(fmt.Sprintf("%d workers of the new version failed, the last one: %s", u.failures, s.reason))
	}
}

// finishUpgrade completes an upgrade when the worker w of the new executable serves: later workers are started from the
// new executable, and the supervisor itself is replaced by it.
func (s *supervisor) finishUpgrade(w *worker) {
	u := s.upgrade
	if u == nil || !u.ordered {
		return
	}
	s.upgrade = nil
	s.Executable = u.path
	if s.program.file != nil {
		s.program.file.Close()
	}
	// Later workers are also started from the new executable.
	s.program.path, s.program.file = u.exe(), u.file
	// If replacing the supervisor fails, the workers nevertheless use the new executable, and only the supervisor still
	// runs the old one.
	if err := s.replace(u.file); err != nil {
		s.Log.Warn("replace supervisor", zap.Error(err))
	}
}

// Package supervisor keeps mounts alive when the process that serves them dies. The supervisor holds the descriptors of
// the mounts by name and starts that process, which is called the worker. When the worker dies, the supervisor starts a
// successor and passes it all descriptors. The kernel then sends the successor those requests again that were not
// answered.
//
// Promises:
//   - There is only one kind of takeover: a successor takes over from a worker that has died. A worker that hangs, is
//     stopped or must be upgraded is therefore first killed by SIGKILL. A worker that has crashed is replaced in the
//     same way.
//   - A successor begins to serve when the connection to its predecessor has ended, which happens when the kernel has
//     closed the predecessor's files. The supervisor does not wait for the rest of the predecessor's end. The
//     successor's process may be started before that moment (a spare).
//   - If a worker cannot start, the supervisor tries again after growing pauses. During an upgrade it returns to the
//     old executable after upgradeTries failures. After giveUpAfter failures it detaches the mounts, so that their
//     users receive errors instead of waiting. Workers that the watchdog has killed do not count as failures: the time
//     limits are raised instead.
//   - The supervisor never opens, stats or holds a file in a mount, and a worker does not do so before it serves.
//     Otherwise an exec, which closes descriptors, could block, because the close of a file in a mount waits for an
//     answer of the worker.
//   - The supervisor may also be lost. A service manager's descriptor store, or that of package fdstore, has copies of
//     the descriptors. Without a service manager, the worker starts a new supervisor and hands the descriptors over to
//     that supervisor.
//
// The state belongs to the goroutine of the method run, which waits only for events and timers. Other goroutines send
// events to that goroutine.
package supervisor

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/supervisor/early"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	// tick is the interval at which the supervisor checks its worker.
	tick      = 500 * time.Millisecond
	readyTime = time.Minute // maximum time from the order to serve until the worker serves
	// waitingTime is the maximum time from the start of an upgrade's worker until it is ready for the order to serve.
	waitingTime = 20 * time.Second
	// statusTime is the wait for the exit status of a worker whose connection has ended. It applies while there are
	// mounts, because their users are waiting.
	statusTime = 2 * time.Millisecond
	// codeTime is the value of statusTime while there are no mounts, while the worker is unmounting, or if this end may
	// be the last failure before the mounts are detached.
	codeTime = time.Second
	goneTime = time.Second // maximum time for the connection of a killed worker to end
	// stopTime is the maximum time in which a worker must unmount everything. It is a little more than twice the
	// worker's own limit.
	stopTime = 75 * time.Second
	// spareTime is the pause between the moment at which a worker begins to serve and the start of a spare worker,
	// because the worker has more urgent tasks at first.
	spareTime = 300 * time.Millisecond
	// hastyTime is the time after a worker began to serve, within which a crash is probably caused by the state that
	// the worker took over.
	hastyTime = time.Second

	// starvedFactor is the number of watchdog limits after which a worker is replaced although the host did not let it
	// run. Before, the worker is not replaced, because its successor would wait as well; then it is, because the
	// measurement of its waiting time may be wrong.
	starvedFactor = 20
	// maxDoublings is the maximum number of times that the time limits are doubled. The limits are doubled once for
	// each consecutive worker that the watchdog has killed.
	maxDoublings = 4
	calmTime     = time.Minute // time for which a worker must serve before the time limits are reset

	upgradeTries = 3  // number of failed workers of a new executable after which the old executable is used again
	giveUpAfter  = 10 // number of consecutive workers that did not serve, after which the mounts are detached
	// hastyFree is the number of consecutive crashes within hastyTime that cause no pause before the start of the next
	// worker.
	hastyFree  = 10
	hastyLimit = 40 // number of consecutive crashes within hastyTime after which the mounts are detached
	stopTries  = 2  // number of workers that may die while they unmount everything; after that the mounts are detached
)

// pauses are the pauses before the successor of a failed worker is started. Tests shorten them.
var pauses = backoff.Backoff{First: 50 * time.Millisecond, Longest: 5 * time.Second}

// Config configures a supervisor.
type Config struct {
	Executable string        // path of the executable, as it appears in the list of processes
	WorkerArgs []string      // arguments of a worker
	Args       []string      // arguments of the supervisor itself, used when it is replaced by a new executable
	Watchdog   time.Duration // time without a message after which a worker counts as hung; 0 disables the check
	Spare      bool          // whether a spare worker waits while there is a mount

	// GiveUp detaches the mounts that the descriptors belong to, and records the reason where the user can read it.
	GiveUp func(descriptors []keeper.Descriptor, reason string) error
	// StoreSocket is the socket of a descriptor store (package fdstore) that keeps copies of all descriptors; "" to use
	// none. StoreName is the name of this daemon in the descriptor store.
	StoreSocket, StoreName string
	// Running reports whether another daemon with the name StoreName runs. It is called only if StoreSocket is not "".
	Running func() bool
	// Leave reports whether the supervisor, when it is asked to exit, exits without unmounting, so that the descriptor
	// store of the service manager or that at StoreSocket keeps the mounts alive. It is called only if there is such a
	// store. If Leave is nil, the mounts are unmounted.
	Leave func() bool

	Log *zap.Logger
}

// supervisor starts and replaces workers. Only the goroutine of the method run accesses its fields; other goroutines
// use only the fields events and done.
type supervisor struct {
	Config
	manager *manager
	outside *outside // descriptor store that Config.StoreSocket names; nil if there is none
	store   store    // descriptors of the mounts
	events  chan event
	done    chan struct{} // closed when run has returned
	program program       // executable and environment from which workers are started

	worker *worker // worker that serves or has received the order to serve; nil during a pause
	next   *worker // worker that waits for the order to serve; nil if there is none
	last   *worker // predecessor of the current worker; nil if there was none
	begun  bool    // whether any worker has received the order to serve
	served bool    // whether any worker has served

	count  int    // number of takeovers
	hung   int    // number of workers that the watchdog has killed
	reason string // reason why the last worker ended
	// failures counts consecutive workers that have failed.
	failures failures
	// upgrade is the upgrade in progress; nil if there is none.
	upgrade *upgrade
	// upgradeFailed is the reason why the last upgrade failed, or "" if it did not fail.
	upgradeFailed string
	// exit records the progress of the end of the daemon, after the context of Run has ended.
	exit     exit
	timers   timers
	lastTick time.Time // time of the last call of beat

	// meter measures for how long the host did not let the worker run.
	meter meter
}

// program is the executable that workers are started from, and their environment. A completed upgrade replaces the
// executable.
type program struct {
	path string   // path of the executable
	file *os.File // the open executable, if path is the path of a descriptor; nil otherwise
	env  []string // environment of workers
}

// exit describes the progress of the end of the daemon.
type exit struct {
	begun   bool // whether the daemon is ending: the mounts are being unmounted, or remain in a descriptor store
	leaving bool // whether the daemon exits without unmounting, because a descriptor store keeps the mounts alive
	deaths  int  // number of workers that died while they unmounted everything
	// asked is closed when the daemon is asked to exit.
	asked <-chan struct{}
}

// timers holds the timers that the method run waits for. A timer that is not set is nil.
type timers struct {
	grace <-chan time.Time // end of the wait for the exit status of a worker whose connection has ended
	pause <-chan time.Time // start of the next worker after a failed one
	spare <-chan time.Time // start of the spare worker
	stop  <-chan time.Time // end of the wait for a worker that unmounts everything
	leave <-chan time.Time // end of the wait for the descriptor store that is to keep the mounts after the exit
}

// event is a message of a worker, or a change of its process or connection. Other goroutines send events to the
// goroutine of run. Exactly one of the fields message, gone, overdue and exited is set.
type event struct {
	// The field from is the worker to which the event relates.
	from    *worker
	message keeper.Message
	// fds holds the descriptors that arrived with the message. The receiver must close them.
	fds     []int
	gone    bool // the connection has ended, so no more messages follow
	overdue bool // the connection of a killed worker has not ended within goneTime
	exited  bool // the process has ended; status is nil if its exit status is unknown
	status  *os.ProcessState
}

// Run runs a supervisor until a worker ends on purpose or ctx ends. It returns the exit code of the process.
func Run(ctx context.Context, c Config) int {
	s := &supervisor{
		Config: c, manager: newManager(), store: store{}, events: make(chan event), done: make(chan struct{}),
		program: program{path: proc.Self.ExecutablePath(), env: workerEnvironment(os.Environ())}, lastTick: time.Now(),
		meter: &threads{},
	}
	defer close(s.done)
	defer s.manager.close()
	early.Watch()
	if err := s.inherit(ctx); err != nil {
		if ctx.Err() != nil { // the daemon was asked to exit while it waited for the end of an earlier one
			return 0
		}
		s.Log.Error("take over mounts", zap.Error(err))
		return 1
	}
	return s.run(ctx)
}

// run handles events and timers until a worker ends on purpose or ctx ends, and returns the exit code of the process.
func (s *supervisor) run(ctx context.Context) int {
	if s.worker == nil {
		if err := s.orderStart(); err != nil && !s.store.hasMounts() {
			return 1
		}
	}
	every := s.manager.period(tick)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	s.exit.asked = ctx.Done()
	stop, early := s.exit.asked, early.Asked()
	for {
		var end bool
		var code int
		select {
		case e := <-s.events:
			code, end = s.handle(e)
		case now := <-ticker.C:
			s.beat(now, every)
		case <-s.outside.lost():
			s.outside.disconnect(errors.New("connection has ended"))
		case <-s.outside.retry():
			s.outside.reconnect(s.store)
			if s.timers.leave != nil && s.outside.connected() {
				code, end = s.shutdown(false)
			}
		case <-s.timers.leave:
			code, end = s.shutdown(false)
		case <-s.timers.grace:
			s.timers.grace = nil
			code, end = s.ended(s.worker)
		case <-s.timers.pause:
			s.timers.pause = nil
			if s.failures.unserved >= giveUpAfter {
				return s.giveUp("no worker could be started: " + s.reason)
			}
			s.orderStart()
		case <-s.timers.spare:
			s.timers.spare = nil
			s.prepare()
		case <-s.timers.stop:
			s.timers.stop = nil
			return s.giveUp("worker did not exit in time")
		case <-stop:
			stop, early = nil, nil
			code, end = s.shutdown(true)
		case <-early:
			stop, early = nil, nil
			code, end = s.shutdown(true)
		}
		if end {
			return code
		}
	}
}

// handle handles one event of a worker. If end is true, the supervisor must exit with the exit code in the result code.
func (s *supervisor) handle(e event) (code int, end bool) {
	w := e.from
	switch {
	case e.exited:
		w.exited, w.status = true, e.status
		switch {
		// The supervisor was waiting for the exit status of this worker.
		case w.gone && w == s.worker:
			s.timers.grace = nil
			return s.ended(w)
		case w == s.last && w.status != nil:
			s.recordReason(w)
		// The connection ends soon after the process, unless a child of the worker has a copy of the socket. The deadline
		// limits the wait in that case.
		case !w.gone:
			w.conn.SetReadDeadline(time.Now().Add(goneTime))
		}
	case e.gone, e.overdue:
		w.gone = true
		w.conn.Close()
		switch {
		case w == s.next:
			s.next = nil
			s.lostNext(w)
		// The exit status usually arrives a moment after the end of the connection. Wait a short time for the status, because
		// it shows whether the worker has crashed.
		case w == s.worker && !w.exited:
			patience := codeTime
			if s.store.hasMounts() && !w.stopping && !s.failures.nextIsLast() {
				patience = statusTime
			}
			s.timers.grace = time.After(patience)
		case w == s.worker:
			return s.ended(w)
		}
	case e.message != nil:
		s.message(w, e.message, e.fds)
	}
	return 0, false
}

// message handles one message of the worker w. It owns the descriptors fds, which arrived with the message, and closes
// those that it does not store.
func (s *supervisor) message(w *worker, m keeper.Message, fds []int) {
	defer func() { keeper.CloseAll(fds) }()
	name := m[keeper.Name]
	switch {
	case m[keeper.Waiting] != "":
		w.waiting, w.version = true, m[keeper.Version]
		// The worker of the upgrade is ready for the order to serve. The old worker can be killed now, because the users of
		// the mounts then have to wait only for a short time.
		if w == s.next && s.upgrade != nil && s.worker != nil {
			s.kill(s.worker, "upgrade to "+w.version)
		}
	case w != s.worker: // other messages are accepted only from the worker that serves
	case m[keeper.Store] != "" && len(fds) == 1 && keeper.ValidName(name) == nil:
		s.manager.remove(s.store, name) // the manager would keep two descriptors with the same name
		s.store.put(name, fds[0])
		s.storeOutside(name, fds[0])
		fds = nil
		s.scheduleSpare()
	case m[keeper.Remove] != "":
		s.removeOutside(name)
		s.store.remove(name)
	case m[keeper.Watchdog] != "":
		w.silence, w.starved = 0, 0
	case m[keeper.Ready] != "":
		s.ready(w)
	case m[keeper.Status] != "":
		s.manager.notify(keeper.Message{keeper.Status: m[keeper.Status]})
	case m[keeper.Stopping] != "":
		w.stopping = true
	case m[keeper.Upgrade] != "":
		if len(fds) == 1 {
			s.beginUpgrade(m[keeper.Upgrade], fds[0])
			fds = nil
		}
	}
}

// ready records that the worker w has begun to serve, and completes an upgrade in progress.
func (s *supervisor) ready(w *worker) {
	w.readyAt, w.silence, w.starved = time.Now(), 0, 0
	s.failures.unserved = 0
	took := w.readyAt.Sub(w.orderedAt)
	if s.count > 0 {
		s.Log.Info("continued mounts", zap.Int("pid", w.process.Pid), zap.String("why", s.reason), zap.Duration("took", took))
	}
	// The service manager expects READY=1 only once, from the first worker.
	if !s.served {
		s.manager.notify(keeper.Message{keeper.Ready: "1"})
	}
	s.served = true
	s.finishUpgrade(w)
	s.scheduleSpare()
}

// beat checks the workers, and reports to the service manager that this process is alive. It is called at the interval
// every.
func (s *supervisor) beat(now time.Time, every time.Duration) {
	// If the supervisor itself was late, because it was stopped or the machine slept, the delay must not count as silence
	// of the worker. Therefore at most two intervals are counted.
	passed := min(now.Sub(s.lastTick), 2*every)
	s.lastTick = now
	s.manager.alive()
	if n := s.next; n != nil {
		n.silence += passed
		switch {
		case s.upgrade != nil && !n.waiting && n.silence >= waitingTime:
			s.kill(n, "worker did not start in time")
		case s.upgrade == nil && !s.store.hasMounts():
			s.kill(n, "not needed")
		}
	}
	w := s.worker
	if w == nil || w.killed != "" || w.gone {
		return
	}
	s.watchdog(w, now, passed)
}

// watchdog kills a worker that sends no message for the time limit of the watchdog, or that does not become ready
// within readyTime. It does not count time during which the host did not let the worker run. Until a worker is ready,
// only the limit readyTime applies, because the kernel may have to read the worker's executable from disk.
func (s *supervisor) watchdog(w *worker, now time.Time, passed time.Duration) {
	w.silence += passed
	// Measure for how long the worker got no processor time. A worker that answers is not measured, because this takes
	// time.
	if w.silence > 2*tick || w.readyAt.IsZero() {
		starved := min(s.meter.starved(w.pid(), passed), passed)
		w.starved += starved
		w.starting += passed - starved
	}
	patience := s.failures.patience()
	// A worker that the watchdog has killed may have been slow because of the machine, so the limits of its successor are
	// twice as long.
	if w.readyAt.IsZero() {
		limit := readyTime << patience
		if w.starting >= limit || now.Sub(w.orderedAt) >= starvedFactor*limit {
			s.killHung(w, "worker was not ready within "+now.Sub(w.orderedAt).Round(tick/5).String())
		}
		return
	}
	if limit := s.Watchdog << patience; s.Watchdog > 0 &&
		(w.silence-w.starved >= limit || w.silence >= starvedFactor*limit) {
		s.killHung(w, "worker did not respond for "+w.silence.Round(tick/5).String())
		return
	}
	if now.Sub(w.readyAt) >= calmTime && w.silence <= 2*tick {
		s.failures.hung = 0
	}
}

// killHung kills the worker w, which hangs, and counts it, so that its successors get longer time limits.
func (s *supervisor) killHung(w *worker, why string) {
	s.Log.Error("kill worker that does not respond", zap.Int("pid", w.pid()),
		zap.Duration("silence", w.silence), zap.Duration("starved", w.starved))
	s.failures.hung++
	s.hung++
	w.hung = true
	s.kill(w, why)
}

// shutdown begins the end of the daemon: it orders the worker to unmount everything, or keeps the mounts alive in a
// descriptor store. If end is true, the supervisor must exit at once with the exit code in the result code.
//
// If wait is true and the descriptor store is being replaced by another process, shutdown does nothing. The method run
// then calls it again when the supervisor is connected to that process, or keepTime has passed.
func (s *supervisor) shutdown(wait bool) (code int, end bool) {
	leave := s.Leave != nil && s.store.hasMounts() && s.Leave()
	if s.timers.leave = nil; leave && wait && !s.keeps() && s.outside != nil {
		s.Log.Warn("wait for descriptor store before exit", zap.String("socket", s.outside.socket))
		s.timers.leave = time.After(keepTime)
		return 0, false
	}
	// From here on, a worker that ends is replaced only if the mounts still have to be unmounted.
	s.exit.begun = true
	s.abandonUpgrade("daemon exits")
	s.exit.leaving = leave && s.keeps()
	s.manager.notify(keeper.Message{keeper.Stopping: "1"})
	if s.next != nil {
		s.kill(s.next, "not needed")
	}
	// Without a worker, no process can unmount the mounts in order.
	switch {
	case s.worker == nil && s.exit.leaving:
		return s.exitStored()
	case s.worker == nil:
		return s.giveUp("daemon was asked to exit while no worker could be started"), true
	case s.exit.leaving:
		s.Log.Info("exiting without unmounting")
		s.kill(s.worker, "daemon is restarting")
	default:
		s.orderStop(s.worker)
		s.timers.stop = time.After(stopTime)
	}
	return 0, false
}

// orderStop orders a worker to unmount everything and exit. If the order cannot be sent, the worker is killed.
func (s *supervisor) orderStop(w *worker) {
	if err := w.conn.SendKey(keeper.Stop, "1"); err != nil && !errors.Is(err, unix.EPIPE) {
		s.kill(w, "worker could not be asked to stop")
	}
}

// exitStored waits until the descriptor store has received all descriptors, and returns the exit code of a supervisor
// that exits without unmounting. If the store has just ended, exitStored sends the descriptors to the process that
// replaces it.
func (s *supervisor) exitStored() (code int, end bool) {
	s.manager.barrier()
	if err := s.outside.deliver(s.store, keepTime); err != nil {
		s.Log.Error("store descriptors", zap.Error(err))
	}
	return 0, true
}

// giveUp kills the workers and detaches all mounts, so that programs that use the mounts receive errors. It returns the
// exit code.
func (s *supervisor) giveUp(reason string) (code int) {
	// Kill the workers first, because a worker that is alive would answer requests of mounts that are being detached.
	for _, w := range []*worker{s.worker, s.next} {
		if w != nil {
			w.process.Kill()
		}
	}
	s.Log.Error("detach mounts after too many failures", zap.String("why", reason))
	if err := s.GiveUp(s.store.files(), reason); err != nil {
		s.Log.Error("detach mounts", zap.Error(err))
	}
	// The command systemctl status shows this reason to the user.
	s.manager.notify(keeper.Message{keeper.Status: "gave up: " + reason})
	for name := range s.store {
		s.removeOutside(name)
	}
	s.barrier()
	return 1
}

// Package supervisor keeps mounts alive beyond the process that serves them. It holds their
// descriptors by name, starts the process that serves (the worker), and starts the next one when
// that dies. The next worker gets all descriptors, and the kernel resends to it the requests that
// were not answered.
//
// Promises:
//   - There is one way of taking over: that of a worker killed by SIGKILL. A worker that crashed, hangs,
//     is stopped or is to be upgraded is killed first.
//   - The next worker starts when the connection to the old one ends, which is when the kernel has closed
//     its files; the rest of its end is not waited for. A worker may be started before that moment (spare).
//   - A worker that cannot start is started again after growing pauses; in an upgrade, the old executable
//     is used again after upgradeTries. After giveUpAfter the mounts are detached, so that their users get
//     errors instead of waiting. Workers killed by the watchdog do not count: the limits grow instead.
//   - The supervisor never opens, stats or holds anything in a mount, and neither do its workers before
//     they serve: exec closes descriptors, and closing a file of a mount waits for a worker.
//   - The supervisor can be lost too. Under a service manager its store has the descriptors as well;
//     otherwise the worker starts another supervisor and hands everything over to it.
//
// One goroutine, run, owns all state; others only send it events. It waits for nothing but events.
package supervisor

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

const (
	tick        = 500 * time.Millisecond
	readyTime   = time.Minute            // from the order to serve until the worker serves
	waitingTime = 20 * time.Second       // from the start of an upgrade's worker until it is ready for the order
	statusTime  = 2 * time.Millisecond   // for the exit status of a worker whose connection has ended, while others wait
	codeTime    = time.Second            // interval of the same check while no file is open
	goneTime    = time.Second            // for the connection to end of a worker that is killed
	stopTime    = 75 * time.Second       // for a worker to unmount everything: twice its own limit, and some more
	spareTime   = 300 * time.Millisecond // pause after a worker serves, which has more urgent work first
	hastyTime   = time.Second            // a worker that crashes within this time probably crashes because of its state

	// A worker that the host does not let run is not replaced: its successor would have to be paged
	// in as well. After starvedFactor times the watchdog's limit it is replaced all the same, since
	// a meter can be wrong.
	starvedFactor = 20
	// mostPatience is the number of times that the limits double, once for each worker that was
	// killed by them.
	mostPatience = 4
	calmTime     = time.Minute // how long a worker must serve until the limits are reset

	upgradeTries = 3  // workers of a new executable that fail before the old one is used again
	giveUpAfter  = 10 // workers in a row that did not serve, until the mounts are detached
	hastyFree    = 10 // crashes in a row, each soon after serving, without a pause
	hastyLimit   = 40 // crashes in a row, each soon after serving, until the mounts are detached
	stopTries    = 2  // workers that die while they unmount everything
)

// Pauses before a worker that has failed is followed by the next; variables for the tests' sake.
var (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// Config configures a supervisor.
type Config struct {
	Executable string        // path, as it shall be seen in the list of processes
	WorkerArgs []string      // of a worker
	Args       []string      // of the supervisor itself, for its next executable
	Watchdog   time.Duration // silence after which a worker counts as hung; 0: never
	Spare      bool          // have a worker wait while there is a mount

	// GiveUp detaches those of kept that are mounts, and stores the reason where a user can read it.
	GiveUp func(descriptors []keeper.Descriptor, reason string) error
	// Leave reports whether the mounts are to survive in the service manager's store when the
	// supervisor is asked to exit. It is called only if there is such a store. If Leave is nil, they are not.
	Leave func() bool

	Log *zap.Logger
}

// supervisor is the state of run. Only the goroutine of run accesses it; other goroutines use
// events and done.
type supervisor struct {
	Config
	manager *manager
	store   store
	events  chan event
	done    chan struct{} // closed when run has returned
	exe     string        // path of the executable of workers
	exeFile *os.File      // open executable, if exe is the path of a descriptor; else nil
	env     []string      // environment of workers

	worker *worker // worker that serves or has the order to serve; nil during a pause
	next   *worker // worker that waits for the order to serve; nil: none
	last   *worker // predecessor of worker
	begun  bool    // whether a worker was sent the order to serve
	served bool    // whether a worker has served

	count         int    // number of takeovers
	reason        string // cause of the end of the last worker
	failures      int    // number of workers in a row that did not serve
	hasty         int    // number of workers in a row that crashed within hastyTime after they began to serve
	upgrade       *upgrade
	upgradeFailed string

	stopping  bool // whether the daemon is ending: the mounts are being unmounted, or left to the service manager
	leaving   bool // whether the mounts are left to the service manager
	stopTries int

	// Timers of run; nil: not set.
	grace, pause, spare, stop <-chan time.Time
	lastTick                  time.Time

	meter meter
	hung  int // number of workers in a row that the watchdog has killed
}

// event is sent by other goroutines to run.
type event struct {
	from    *worker
	message keeper.Message
	fds     []int
	gone    bool // whether the connection has ended; no more messages follow
	overdue bool // whether the connection of a killed worker has not ended within goneTime
	exited  bool // whether the process has ended, with status
	status  *os.ProcessState
}

// Run serves until a worker ends on purpose or ctx ends, and returns the exit code.
func Run(ctx context.Context, c Config) int {
	s := &supervisor{
		Config: c, manager: newManager(), store: store{}, events: make(chan event), done: make(chan struct{}),
		exe: proc.Self.ExecutablePath(), env: workerEnvironment(os.Environ()), lastTick: time.Now(), meter: &threads{},
	}
	defer close(s.done)
	defer s.manager.close()
	if err := s.inherit(); err != nil {
		s.Log.Error("take over from another supervisor", zap.Error(err))
		return 1
	}
	return s.run(ctx)
}

// run handles events and timers until a worker ends on purpose, and returns the exit code of the
// process.
func (s *supervisor) run(ctx context.Context) int {
	if s.worker == nil {
		if err := s.orderStart(); err != nil && !s.store.hasMounts() {
			return 1
		}
	}
	every := s.manager.period(tick)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	stop := ctx.Done()
	for {
		var end bool
		var code int
		select {
		case e := <-s.events:
			code, end = s.handle(e)
		case now := <-ticker.C:
			s.beat(now, every)
		case <-s.grace:
			s.grace = nil
			code, end = s.ended(s.worker)
		case <-s.pause:
			s.pause = nil
			if s.failures >= giveUpAfter {
				return s.giveUp("no worker can be started: " + s.reason)
			}
			s.orderStart()
		case <-s.spare:
			s.spare = nil
			s.prepare()
		case <-s.stop:
			s.stop = nil
			return s.giveUp("it did not end in time")
		case <-stop:
			stop = nil
			code, end = s.shutdown()
		}
		if end {
			return code
		}
	}
}

// handle handles one event. end is true if the supervisor ends with the exit code code.
func (s *supervisor) handle(e event) (code int, end bool) {
	w := e.from
	switch {
	case e.exited:
		w.exited, w.status = true, e.status
		switch {
		case w.gone && w == s.worker: // its status was waited for
			s.grace = nil
			return s.ended(w)
		case w == s.last && w.status != nil:
			s.learn(w)
		case !w.gone: // unless one of its children has a copy of the socket, the end follows
			w.conn.SetReadDeadline(time.Now().Add(goneTime))
		}
	case e.gone, e.overdue:
		w.gone = true
		w.conn.Close()
		switch {
		case w == s.next:
			s.next = nil
			s.lostNext(w)
		// The exit status usually arrives a moment later, and is worth a short wait: it decides
		// whether the worker crashed.
		case w == s.worker && !w.exited:
			patience := codeTime
			if s.store.hasMounts() && !w.stopping {
				patience = statusTime
			}
			s.grace = time.After(patience)
		case w == s.worker:
			return s.ended(w)
		}
	case e.message != nil:
		s.message(w, e.message, e.fds)
	}
	return 0, false
}

// message handles one message of a worker. It owns the descriptors fds, and closes those that it
// does not store.
func (s *supervisor) message(w *worker, m keeper.Message, fds []int) {
	defer func() { closeAll(fds) }()
	name := m[keeper.Name]
	switch {
	case m[keeper.Waiting] != "":
		w.waiting, w.version = true, m[keeper.Version]
		// The upgraded worker is ready for the order, so the old one can be killed without a long
		// pause for the users of the mounts.
		if w == s.next && s.upgrade != nil && s.worker != nil {
			s.kill(s.worker, "upgrade to "+w.version)
		}
	case w != s.worker: // messages of other workers are ignored
	case m[keeper.Store] != "" && len(fds) == 1 && keeper.ValidName(name) == nil:
		s.manager.remove(s.store, name)
		s.store.put(name, fds[0])
		s.manager.store(name, fds[0])
		fds = nil
		s.wantSpare()
	case m[keeper.Remove] != "":
		s.manager.remove(s.store, name)
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

// ready records that a worker serves.
func (s *supervisor) ready(w *worker) {
	w.readyAt, w.silence, w.starved = time.Now(), 0, 0
	s.failures = 0
	took := w.readyAt.Sub(w.orderedAt)
	if s.count > 0 {
		s.Log.Info("the mounts are served again", zap.Int("pid", w.process.Pid), zap.String("why", s.reason), zap.Duration("took", took))
	}
	// systemd expects READY=1 once, from the first worker.
	if !s.served {
		s.manager.notify(keeper.Message{keeper.Ready: "1"})
	}
	s.served = true
	s.finishUpgrade(w)
	s.wantSpare()
}

// beat checks the worker and reports to the manager that this process runs.
func (s *supervisor) beat(now time.Time, every time.Duration) {
	// If the supervisor itself was late, because it was stopped or the machine slept, the worker is
	// not to blame.
	passed := min(now.Sub(s.lastTick), 2*every)
	s.lastTick = now
	s.manager.alive()
	if n := s.next; n != nil {
		n.silence += passed
		switch {
		case s.upgrade != nil && !n.waiting && n.silence >= waitingTime:
			s.kill(n, "it did not come up")
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

// watchdog kills a worker that sends no sign of life, or does not become ready. Time in which the
// host did not let it run does not count. Before it is ready it may have to be paged in, and has
// all of readyTime.
func (s *supervisor) watchdog(w *worker, now time.Time, passed time.Duration) {
	w.silence += passed
	if w.silence > 2*tick || w.readyAt.IsZero() { // checking a healthy worker costs more than it is worth
		starved := min(s.meter.starved(w.pid(), passed), passed)
		w.starved += starved
		w.starting += passed - starved
	}
	patience := min(s.hung, mostPatience)
	// A worker that was killed for slowness may have been slow because of the machine: its
	// successor has twice the time.
	if w.readyAt.IsZero() {
		limit := readyTime << patience
		if w.starting >= limit || now.Sub(w.orderedAt) >= starvedFactor*limit {
			s.hangs(w, "it did not get ready in "+now.Sub(w.orderedAt).Round(tick/5).String())
		}
		return
	}
	if limit := s.Watchdog << patience; s.Watchdog > 0 && (w.silence-w.starved >= limit || w.silence >= starvedFactor*limit) {
		s.hangs(w, "it gave no sign of life for "+w.silence.Round(tick/5).String())
		return
	}
	if now.Sub(w.readyAt) >= calmTime && w.silence <= 2*tick {
		s.hung = 0
	}
}

// hangs kills a worker that hangs.
func (s *supervisor) hangs(w *worker, why string) {
	s.Log.Error("the worker hangs and is killed", zap.Int("pid", w.pid()),
		zap.Duration("silence", w.silence), zap.Duration("starved", w.starved))
	s.hung++
	w.hung = true
	s.kill(w, why)
}

// shutdown starts the end of the daemon: it orders the worker to unmount everything, or leaves the
// mounts to the service manager. It returns true if the supervisor can end at once.
func (s *supervisor) shutdown() (code int, end bool) {
	// From here on a worker that ends is not replaced, except to unmount.
	s.stopping = true
	s.abandonUpgrade("the daemon ends")
	s.leaving = s.manager.keeps() && s.Leave != nil && s.store.hasMounts() && s.Leave()
	s.manager.notify(keeper.Message{keeper.Stopping: "1"})
	if s.next != nil {
		s.kill(s.next, "not needed")
	}
	// Without a worker no process can unmount in order.
	switch {
	case s.worker == nil && s.leaving:
		return s.left()
	case s.worker == nil:
		return s.giveUp("it was asked to exit while no worker could be started"), true
	case s.leaving:
		s.Log.Info("ending, the mounts live on")
		s.kill(s.worker, "the daemon is started anew")
	default:
		s.tellStop(s.worker)
		s.stop = time.After(stopTime)
	}
	return 0, false
}

// tellStop orders a worker to unmount everything and exit.
func (s *supervisor) tellStop(w *worker) {
	if err := w.conn.Tell(keeper.Stop, "1"); err != nil && !errors.Is(err, unix.EPIPE) {
		s.kill(w, "it could not be asked to stop")
	}
}

// left returns after the service manager has received all descriptors.
func (s *supervisor) left() (code int, end bool) {
	s.manager.barrier()
	return 0, true
}

// giveUp kills the workers and detaches all mounts, so that their users get errors. It returns the
// exit code.
func (s *supervisor) giveUp(reason string) (code int) {
	// A worker that is alive would answer requests of mounts that are being detached.
	for _, w := range []*worker{s.worker, s.next} {
		if w != nil {
			w.process.Kill()
		}
	}
	s.Log.Error("giving up: the mounts are detached", zap.String("why", reason))
	if err := s.GiveUp(s.store.files(), reason); err != nil {
		s.Log.Error("detach mounts", zap.Error(err))
	}
	// The user of systemctl status learns the reason.
	s.manager.notify(keeper.Message{keeper.Status: "gave up: " + reason})
	for name := range s.store {
		s.manager.remove(s.store, name)
	}
	s.manager.barrier()
	return 1
}

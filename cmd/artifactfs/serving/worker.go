package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/supervisor"
	"github.com/artifactfs/artifactfs/internal/collector"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

const (
	beatPause       = 500 * time.Millisecond // interval between two signs of life of a healthy worker
	resumeTime      = 10 * time.Second       // time limit for resuming the predecessor's mounts before READY is sent
	supervisorPause = time.Second            // pause between attempts to start a supervisor

	// SocketDescriptor and the next constant are the names under which the supervisor keeps the descriptors of the
	// control socket and of its lock.
	SocketDescriptor = "control"
	LockDescriptor   = "control-lock"

	maxStacks = 256 << 10 // maximum size in bytes of the goroutine stacks in the log of a worker that hangs
)

// WorkerCommand returns the hidden command that the supervisor starts.
func WorkerCommand(a *cli.App) *cobra.Command {
	var f DaemonFlags
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Serve mounts for a supervisor, which starts it",
		Hidden: true,
		Args:   cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(a, cmd); err != nil {
				return err
			}
			conn, err := keeper.Open(supervisor.WorkerFD)
			if err != nil {
				return &control.Error{Code: control.ExitUsage, Verb: "worker",
					Cause: "no supervisor: " + err.Error(), Hint: "artifactfs daemon --help"}
			}
			if err := becomeDaemon(a); err != nil {
				return err
			}
			if f.fdstore != "" {
				supervisor.KeepLife()
			}
			// The supervisor handles the signals that end a daemon and sends the worker a message.
			return RunWorker(context.WithoutCancel(cmd.Context()), a, conn, f)
		},
	}
	addDaemonFlags(a, cmd, &f)
	return cmd
}

// worker serves the mounts. It is the Handler of the control socket.
type worker struct {
	// Host is set after the daemon was created.
	cli.Host
	conn  *keeper.Conn
	start keeper.Start
	since time.Time
	log   *zap.Logger

	// whether the worker ends because of a signal or because it is idle, so that a failure of the supervisor no longer
	// matters
	ending atomic.Bool

	mu     sync.Mutex    // protects failed, news and start.Reason
	failed string        // reason why the last upgrade failed
	news   chan struct{} // closed when the field failed changes
}

// RunWorker waits until the supervisor starts this worker, and serves. A spare worker that is never started returns
// nil.
//
// A successor that cannot take over the mounts ends without unmounting them, because another worker may succeed.
func RunWorker(ctx context.Context, a *cli.App, conn *keeper.Conn, f DaemonFlags) (err error) {
	prepareToServe(a)
	// A new process has a small heap and would collect garbage often, which would take a third of the processor time
	// until READY. The start produces little garbage, so turn the collector off.
	collector.SetIdle(-1)
	log, closeLog, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	start, descriptors, err := conn.AwaitStart(cli.Version)
	if errors.Is(err, io.EOF) {
		return nil // This worker was a spare, and it was not needed.
	} else if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	w := &worker{conn: conn, start: start, since: time.Now(), log: log, failed: start.UpgradeFailed,
		news: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var alive atomic.Pointer[cli.Host]
	done := make(chan struct{})
	defer close(done)
	// The worker sends signs of life before the Host exists, because creating the Host may take longer than the watchdog
	// allows.
	go w.beat(ctx, &alive, max(beatPause, f.watchdog/2), done)
	go listen(a, w, cancel, f)

	socket, lock := take(&descriptors, SocketDescriptor), take(&descriptors, LockDescriptor)
	w.Host, err = a.NewHost(daemon.Config{
		State: a.State, StoreFrom: f.storeFrom, Log: log, Keeper: conn, Descriptors: descriptors, Reason: start.Reason,
		Takeovers: start.Count,
	})
	if err != nil {
		return a.OfState(fmt.Errorf("start daemon: %w", err))
	}
	alive.Store(&w.Host)
	defer func() {
		w.ending.Store(true)
		if err != nil && start.Count > 0 {
			return // Do not unmount: another worker may be able to take over the mounts.
		}
		err = errors.Join(err, closeHost(w.Host))
		conn.SendKey(keeper.Stopping, "1") // tell the supervisor that no successor is needed from now on
	}()
	endMetrics, err := serveMetrics(a, w.WriteMetrics, log, start.Count > 0)
	if err != nil {
		return err
	}
	defer endMetrics()
	server, err := control.Inherit(ctx, a.DaemonSocket(), socket, lock, w, log)
	if errors.Is(err, control.ErrInUse) {
		return errors.Join(err, &control.Error{Code: control.ExitFailed, Verb: "start daemon", Cause: err.Error(),
			Hint: "run artifactfs daemon --upgrade to replace the daemon by this version, or add --state DIR to use another daemon"})
	} else if err != nil {
		return a.OfState(fmt.Errorf("start daemon: %w", err))
	}
	if err := keepServer(conn, server); err != nil {
		server.Close()
		server.Serve(ctx)
		return fmt.Errorf("start daemon: %w", err)
	}
	log.Info("serving", zap.String("version", cli.Version), zap.String("socket", a.DaemonSocket()),
		zap.Int("pid", os.Getpid()),
		zap.Int("takeovers", start.Count))
	serveWorker(ctx, a, cancel, w, server, f)
	log.Info("exiting")
	return nil
}

// serveWorker serves requests, reports READY after the mounts were resumed, and returns when the server has ended.
func serveWorker(ctx context.Context, a *cli.App, cancel context.CancelFunc, w *worker, server *control.Server,
	f DaemonFlags) {
	var beside sync.WaitGroup
	beside.Go(func() {
		resume, stop := context.WithTimeout(ctx, resumeTime)
		defer stop()
		switch err := w.Resumed(resume); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, context.DeadlineExceeded):
			w.log.Warn("wait for mounts of the previous worker", zap.Error(err))
		default: // During an upgrade, the supervisor then starts the old executable again.
			w.log.Error("continue mounts", zap.Error(err))
			os.Exit(control.ExitFailed)
		}
		w.conn.SendKey(keeper.Ready, "1")
		collector.SetIdle(gcPercent)
		if f.restore && ctx.Err() == nil {
			if err := w.Remount(ctx); err != nil && ctx.Err() == nil {
				w.log.Error("restore mounts", zap.Error(err))
			}
		}
	})
	beside.Go(func() {
		if f.Idle > 0 {
			closeWhenIdle(ctx, server, w, f.Idle)
		}
	})
	server.Serve(ctx)
	w.ending.Store(true)
	cancel()
	beside.Wait()
	w.conn.Drop(LockDescriptor)
}

// take removes the descriptor called name from *descriptors and returns its file, or nil if there is no such
// descriptor.
func take(descriptors *[]keeper.Descriptor, name string) *os.File {
	for i, k := range *descriptors {
		if k.Name == name {
			*descriptors = slices.Delete(*descriptors, i, i+1)
			return k.File
		}
	}
	return nil
}

// keepServer stores the control socket and its lock with the supervisor, so that a successor can continue to use them.
func keepServer(conn *keeper.Conn, server *control.Server) error {
	listener, lock, err := server.Files()
	if err != nil {
		return err
	}
	defer listener.Close()
	server.OnClose(func() { conn.Drop(SocketDescriptor) })
	return errors.Join(conn.Keep(SocketDescriptor, listener), conn.Keep(LockDescriptor, lock))
}

// beat sends signs of life to the supervisor while all mounts respond. The parameter patience is the timeout for the
// responses of the mounts. The supervisor replaces a worker that sends no sign of life for the duration of --watchdog.
func (w *worker) beat(ctx context.Context, alive *atomic.Pointer[cli.Host], patience time.Duration,
	done <-chan struct{}) {
	reported := false
	for {
		err := error(nil)
		if h := alive.Load(); h != nil {
			asking, cancel := context.WithTimeout(ctx, patience)
			err = (*h).Alive(asking)
			cancel()
		}
		switch {
		case err == nil:
			w.conn.SendKey(keeper.Watchdog, "1")
			reported = false
		case !reported && ctx.Err() == nil: // log the hang only once
			reported = true
			stacks := make([]byte, maxStacks)
			w.log.Error("daemon does not respond", zap.Error(err),
				zap.ByteString("stacks", stacks[:runtime.Stack(stacks, true)]))
		}
		if ctx.Err() != nil { // The worker is unmounting everything, for which another timeout applies.
			w.conn.SendKey(keeper.Watchdog, "1")
		}
		select {
		case <-time.After(beatPause):
		case <-done:
			return
		}
	}
}

// listen handles the supervisor's messages. If the supervisor dies, it calls replaceSupervisor.
func listen(a *cli.App, w *worker, cancel context.CancelFunc, f DaemonFlags) {
	for {
		m, _, err := w.conn.Receive()
		switch {
		case err != nil:
			replaceSupervisor(a, w, f)
			return
		case m[keeper.Stop] != "":
			w.ending.Store(true)
			cancel()
		case m[keeper.Reason] != "":
			w.mu.Lock()
			w.start.Reason = m[keeper.Reason]
			w.mu.Unlock()
		case m[keeper.UpgradeFailed] != "":
			w.mu.Lock()
			w.failed = m[keeper.UpgradeFailed]
			close(w.news)
			w.news = make(chan struct{})
			w.mu.Unlock()
		}
	}
}

// replaceSupervisor starts another supervisor, which starts another worker. Until that worker serves, this worker
// continues to serve. Under a service manager, replaceSupervisor ends this process instead: the manager has the
// descriptors and restarts the service.
func replaceSupervisor(a *cli.App, w *worker, f DaemonFlags) {
	if w.ending.Load() {
		return
	}
	if w.start.Managed {
		w.log.Warn("lost supervisor; the service manager keeps the mounts")
		os.Exit(control.ExitFailed)
	}
	w.log.Warn("lost supervisor; starting another one")
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	args, err := daemonArguments(a, "daemon", f)
	for err == nil && !w.ending.Load() {
		err := supervisor.Resurrect(w.conn, executable, args, w.start)
		w.log.Error("start supervisor", zap.Error(err))
		time.Sleep(supervisorPause)
	}
}

// Status returns the Host's status and adds the data of this process.
func (w *worker) Status(ctx context.Context) (control.Status, error) {
	s, err := w.Host.Status(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Daemon = control.DaemonStatus{
		PID: os.Getpid(), Supervisor: w.start.Supervisor, Version: cli.Version, Protocol: control.Protocol,
		Since: w.since, Takeovers: w.start.Count, Reason: w.start.Reason, UpgradeFailed: w.failed,
	}
	return s, err
}

var _ control.Upgrader = (*worker)(nil)

// Upgrade implements control.Upgrader. It returns only if the upgrade fails, because a successful upgrade ends this
// process.
func (w *worker) Upgrade(ctx context.Context, r control.UpgradeRequest) error {
	if err := CheckExecutable(r.Executable); err != nil {
		return err
	}
	file, err := os.Open(r.Executable)
	if err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	defer file.Close()
	w.mu.Lock()
	w.failed = ""
	news := w.news
	w.mu.Unlock()
	if err := w.conn.Send(keeper.Message{keeper.Upgrade: r.Executable}, int(file.Fd())); err != nil {
		return cli.Failure("upgrade", "daemon", err)
	}
	select {
	case <-news:
		w.mu.Lock()
		defer w.mu.Unlock()
		return cli.Failure("upgrade", "daemon", errors.New(w.failed))
	case <-ctx.Done():
		return ctx.Err()
	}
}

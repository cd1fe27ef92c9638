package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/supervisor"
)

const (
	beatPause    = 500 * time.Millisecond // of a worker that is well
	resumeTime   = 10 * time.Second       // for the mounts of the worker before to be served again, until it counts as started
	resurrection = time.Second            // between tries to start a supervisor

	// Names of what is kept of the control socket.
	KeptSocket = "control"
	KeptLock   = "control-lock"

	maxStacks = 256 << 10 // bytes of the log about a worker that hangs
)

func WorkerCommand(a *cli.App) *cobra.Command {
	var f DaemonFlags
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Serve mounts for a supervisor, which starts it",
		Hidden: true,
		Args:   cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			conn, err := keeper.Open(supervisor.WorkerFD)
			if err != nil {
				return &control.Error{Code: control.ExitUsage, Verb: "worker", Cause: "there is no supervisor: " + err.Error(), Hint: "artifactfs daemon --help"}
			}
			if err := becomeDaemon(a); err != nil {
				return err
			}
			// The supervisor gets the signals that end a daemon, and says what is to be done.
			return RunWorker(context.WithoutCancel(cmd.Context()), a, conn, f)
		},
	}
	addDaemonFlags(a, cmd, &f)
	return cmd
}

// worker serves the mounts, as long as it lives. It is the Handler of the control socket.
type worker struct {
	cli.Host
	conn  *keeper.Conn
	start keeper.Start
	since time.Time
	log   *zap.Logger

	ending atomic.Bool // by a signal, or idle: a failure of the supervisor no longer matters

	mu     sync.Mutex    // also for start.Reason
	failed string        // why the last upgrade was not made
	news   chan struct{} // closed when failed changes
}

// RunWorker waits until it is this process's turn and serves.
func RunWorker(ctx context.Context, a *cli.App, conn *keeper.Conn, f DaemonFlags) (err error) {
	prepareToServe(a)
	// What starts has little garbage, and a small heap is collected often: a third of the processor time until READY.
	debug.SetGCPercent(-1)
	log, closeLog, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	start, kept, err := conn.AwaitStart(cli.Version)
	if errors.Is(err, io.EOF) {
		return nil // it was a spare one
	} else if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	w := &worker{conn: conn, start: start, since: time.Now(), log: log, failed: start.UpgradeFailed, news: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var alive atomic.Pointer[cli.Host]
	done := make(chan struct{})
	defer close(done)
	go w.beat(ctx, &alive, max(beatPause, f.watchdog/2), done)
	go listen(a, w, cancel, f)

	socket, lock := take(&kept, KeptSocket), take(&kept, KeptLock)
	w.Host, err = a.NewHost(daemon.Config{State: a.State, Log: log, Keeper: conn, Kept: kept, Reason: start.Reason, Takeovers: start.Count})
	if err != nil {
		return a.OfState(fmt.Errorf("start daemon: %w", err))
	}
	alive.Store(&w.Host)
	defer func() {
		w.ending.Store(true)
		if err != nil && start.Count > 0 {
			return // another may be able to go on with the mounts
		}
		err = errors.Join(err, closeHost(w.Host))
		conn.Tell(keeper.Stopping, "1") // from here on no successor is needed
	}()
	endMetrics, err := serveMetrics(a, w.Host, log, start.Count > 0)
	if err != nil {
		return err
	}
	defer endMetrics()
	server, err := control.Inherit(ctx, a.DaemonSocket(), socket, lock, w, log)
	if errors.Is(err, control.ErrInUse) {
		return errors.Join(err, &control.Error{Code: control.ExitFailed, Verb: "start daemon", Cause: err.Error(),
			Hint: "artifactfs daemon --upgrade replaces it by this version; --state DIR selects another daemon"})
	} else if err != nil {
		return a.OfState(fmt.Errorf("start daemon: %w", err))
	}
	if err := keepServer(conn, server); err != nil {
		server.Close()
		server.Serve(ctx)
		return fmt.Errorf("start daemon: %w", err)
	}
	log.Info("serving", zap.String("version", cli.Version), zap.String("socket", a.DaemonSocket()), zap.Int("pid", os.Getpid()),
		zap.Int("takeovers", start.Count))
	serveWorker(ctx, a, cancel, w, server, f)
	log.Info("ending")
	return nil
}

// serveWorker returns when the server has ended.
func serveWorker(ctx context.Context, a *cli.App, cancel context.CancelFunc, w *worker, server *control.Server, f DaemonFlags) {
	var beside sync.WaitGroup
	beside.Go(func() {
		resume, stop := context.WithTimeout(ctx, resumeTime)
		defer stop()
		switch err := w.Resumed(resume); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, context.DeadlineExceeded):
			w.log.Warn("mounts are not served again yet", zap.Error(err))
		default: // in an upgrade it is the old executable's turn
			w.log.Error("continue mounts", zap.Error(err))
			os.Exit(control.ExitFailed)
		}
		w.conn.Tell(keeper.Ready, "1")
		debug.SetGCPercent(gcPercent)
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
	w.conn.Drop(KeptLock)
}

// take takes a file out of what is kept.
func take(kept *[]keeper.Kept, name string) *os.File {
	for i, k := range *kept {
		if k.Name == name {
			*kept = slices.Delete(*kept, i, i+1)
			return k.File
		}
	}
	return nil
}

// keepServer has another process go on with the control socket after us.
func keepServer(conn *keeper.Conn, server *control.Server) error {
	listener, lock, err := server.Files()
	if err != nil {
		return err
	}
	defer listener.Close()
	server.OnClose(func() { conn.Drop(KeptSocket) })
	return errors.Join(conn.Keep(KeptSocket, listener), conn.Keep(KeptLock, lock))
}

// beat sends the supervisor signs of life while the locks of all mounts answer. patience is how long its locks may take to answer.
func (w *worker) beat(ctx context.Context, alive *atomic.Pointer[cli.Host], patience time.Duration, done <-chan struct{}) {
	told := false
	for {
		err := error(nil)
		if h := alive.Load(); h != nil {
			asking, cancel := context.WithTimeout(ctx, patience)
			err = (*h).Alive(asking)
			cancel()
		}
		switch {
		case err == nil:
			w.conn.Tell(keeper.Watchdog, "1")
			told = false
		case !told && ctx.Err() == nil: // logs which mount hangs, once
			told = true
			stacks := make([]byte, maxStacks)
			w.log.Error("the daemon hangs", zap.Error(err), zap.ByteString("stacks", stacks[:runtime.Stack(stacks, true)]))
		}
		if ctx.Err() != nil { // while everything is unmounted, which has a limit of its own
			w.conn.Tell(keeper.Watchdog, "1")
		}
		select {
		case <-time.After(beatPause):
		case <-done:
			return
		}
	}
}

// listen does what the supervisor says, and does without one when there is none.
func listen(a *cli.App, w *worker, cancel context.CancelFunc, f DaemonFlags) {
	for {
		m, _, err := w.conn.Receive()
		switch {
		case err != nil:
			goOnAlone(a, w, f)
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

// goOnAlone has another supervisor started, which has another worker started. This one serves until then.
func goOnAlone(a *cli.App, w *worker, f DaemonFlags) {
	if w.ending.Load() {
		return
	}
	if w.start.Managed {
		w.log.Warn("the supervisor is gone, the service manager has the mounts")
		os.Exit(control.ExitFailed)
	}
	w.log.Warn("the supervisor is gone, another is started")
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	args, err := daemonArguments(a, "daemon", f)
	for err == nil && !w.ending.Load() {
		err := supervisor.Resurrect(w.conn, executable, args, w.start)
		w.log.Error("start supervisor", zap.Error(err))
		time.Sleep(resurrection)
	}
}

// Status adds what is known of this process.
func (w *worker) Status(ctx context.Context) (control.Status, error) {
	s, err := w.Host.Status(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Daemon = control.DaemonStatus{
		PID: os.Getpid(), Supervisor: w.start.Supervisor, Version: cli.Version, Protocol: control.Protocol, Since: w.since, Takeovers: w.start.Count,
		Reason: w.start.Reason, UpgradeFailed: w.failed,
	}
	return s, err
}

var _ control.Upgrader = (*worker)(nil)

// Upgrade implements control.Upgrader: this process does not live to see it succeed.
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

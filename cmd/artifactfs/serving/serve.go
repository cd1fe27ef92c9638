// Package serving holds the commands whose process serves mounts: the shared daemon with its supervisor and worker, its
// upgrade, a mount in the foreground, and the helpers that git starts (promisor, credential).
package serving

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/internal/collector"
)

const (
	// closeTime is the timeout for unmounting everything.
	closeTime = 30 * time.Second

	// A daemon is mostly idle, and a host may run many daemons. Therefore the heap of a daemon grows by only 40 %
	// between two collections, instead of Go's default of 100 %, and memory that was used for a short time returns to
	// the system. The memory limit, in bytes, is soft: live data may exceed it.
	gcPercent   = 40
	memoryLimit = 64 << 20

	// The threads of a daemon mostly block in reads of the kernel's requests. If GOMAXPROCS is small, Go takes the
	// processor from such a thread after 20 microseconds, and must assign it again when the request arrives. With a
	// GOMAXPROCS of 4, creating 10,000 files needs a quarter less processor time and half as many futex calls as with
	// 2; with 8, nothing improves further.
	leastProcs = 4
)

// ServeMount runs the command "mount --foreground": it serves one mount until the mount is unmounted or a signal ends
// the process. It prints the result of the mount before it starts to wait.
func ServeMount(ctx context.Context, a *cli.App, r control.MountRequest,
	mounted func(context.Context, *control.MountReply) error) (err error) {
	prepareToServe(a)
	if err := KeepMemory(); err != nil {
		return cli.Failure("mount", r.Dir, err)
	}
	log, closeLog, err := a.NewLog(zapcore.WarnLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	h, err := a.NewHost(daemon.Config{State: a.State, Log: log})
	if err != nil {
		return cli.Failure("mount", r.Dir, a.OfState(err))
	}
	defer func() {
		err = errors.Join(err, closeHost(h))
		reportChanges(a, r.Dir)
	}()
	socket := a.Socket
	if socket == "" {
		socket = control.MountSocket(a.State, os.Getpid())
	}
	server, err := control.Listen(ctx, socket, alone{h, time.Now()}, log)
	if err != nil {
		return cli.Failure("mount", r.Dir, err)
	}
	defer serveUntilClosed(server)()

	start := time.Now()
	p := a.NewProgress()
	reply, err := h.Mount(ctx, r, p.Show)
	p.Stop()
	if err != nil && control.AsError(err).ErrorCode() == control.CodeNotMounted {
		return nil // The directory was mounted and later unmounted, as the user has requested.
	}
	if err != nil {
		return cli.Failure("mount", r.Dir, err)
	}
	err = mounted(ctx, &reply)
	if err := errors.Join(cli.PrintMount(a, reply, time.Since(start)), err); err != nil {
		return err
	}
	select {
	case <-h.Idle():
	case <-ctx.Done():
	}
	return nil
}

// alone is the control.Handler of a process that has no supervisor.
type alone struct {
	cli.Host
	since time.Time
}

// Status returns the Host's status and adds the data of this process.
func (p alone) Status(ctx context.Context) (control.Status, error) {
	s, err := p.Host.Status(ctx)
	s.Daemon = control.DaemonStatus{PID: os.Getpid(), Version: cli.Version, Protocol: control.Protocol, Since: p.since}
	return s, err
}

// reportChanges prints the name of the session that keeps the changes of a mount that this process has served in the
// foreground.
func reportChanges(a *cli.App, dir string) {
	kept, _ := catalog.Unmounted(a.State)
	for _, k := range kept {
		if k.Dir == dir && k.Overlay.Changed >= 0 {
			cli.ReportChanges(a, k, k.Overlay.Changed)
		}
	}
}

// serveUntilClosed serves in the background. The returned function closes the server and waits until it has ended.
func serveUntilClosed(server *control.Server) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		server.Serve(ctx)
		close(ended)
	}()
	return func() {
		// Close waits for requests in progress, so the caller whose unmount ends this process still receives the reply.
		server.Close()
		select {
		case <-ended:
		case <-time.After(closeTime):
		}
		cancel()
		<-ended
	}
}

// closeWhenIdle closes the server when no mount has existed for the duration idle. The server is closed only if there
// is still no mount at the moment of closing (control.Server.CloseIdle).
func closeWhenIdle(ctx context.Context, server *control.Server, h cli.Host, idle time.Duration) {
	isIdle := func() bool {
		select {
		case <-h.Idle():
			return true
		default:
			return false
		}
	}
	for {
		select {
		case <-h.Idle():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(idle):
		case <-ctx.Done():
			return
		}
		if server.CloseIdle(isIdle) {
			return
		}
	}
}

// closeHost unmounts everything, with the timeout closeTime.
func closeHost(h cli.Host) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return h.Close(ctx)
}

// prepareToServe sets up the Go runtime and the environment of a process that serves mounts.
func prepareToServe(a *cli.App) {
	a.Serving = true
	collector.SetIdle(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), leastProcs))
	}
	ForgetRepository()
	// If a reader of this process's output exits, the mounts must not end. SIGPIPE is caught and not ignored, because git
	// would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// ForgetRepository removes the environment variables in which git passes a repository to hooks and aliases. With these
// variables, the git processes of a daemon that was started from a hook would work in the caller's repository.
func ForgetRepository() {
	for _, name := range gitcmd.LocalVariables {
		os.Unsetenv(name)
	}
}

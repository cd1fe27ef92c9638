package serving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/host/supervisor"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// defaultWatchdog is the default time without a sign of life after which the supervisor replaces a worker. It is longer
// than the time between two signs of life of a healthy worker, and so short that a program that waits for a reply
// hardly notices the failure.
const defaultWatchdog = 3 * time.Second

const (
	// supervisorMemory is a soft limit in bytes. With 8 MiB, the Go runtime collected garbage at every message of the
	// worker, which took ten times the processor time; the resident memory is the same.
	supervisorMemory = 16 << 20
	// supervisorProcs is the maximum GOMAXPROCS of the supervisor.
	supervisorProcs = 2
)

// DaemonFlags contains the flags of the command "daemon", which are passed on to its workers.
type DaemonFlags struct {
	Idle, watchdog time.Duration
	restore        bool
	storeFrom      string // absolute path of the state directory of another daemon whose objects are used; "": none
	fdstore        string // path of the socket of a descriptor store; "" if there is none
	onTerm         onTerm
}

// onTerm is the action of a daemon that receives SIGTERM.
type onTerm string

const (
	// leave the mounts if the service manager restarts the daemon, and unmount them otherwise
	termAuto    onTerm = "auto"
	termUnmount onTerm = "unmount" // unmount everything
	termLeave   onTerm = "leave"   // leave the mounts in the descriptor store
)

// addDaemonFlags adds the flags of the daemon and worker commands.
func addDaemonFlags(a *cli.App, cmd *cobra.Command, f *DaemonFlags) {
	flags := cmd.Flags()
	flags.DurationVar(&f.Idle, "idle-exit", 0,
		"exit after `WAIT` without a mount (default: never; a daemon\nthat mount has started: 5m)")
	flags.BoolVar(&f.restore, "restore", false, "mount again what was mounted when the machine went down")
	flags.DurationVar(&f.watchdog, "watchdog", defaultWatchdog,
		"replace the worker if it gives no sign of life for `WAIT`;\n0: never")
	flags.StringVar(&f.storeFrom, "store-from", "",
		"read what the daemon of another state directory has fetched from `DIR`, for\n"+
			"mounts that name no such directory; see artifactfs mount --help --all")
	flags.StringVar(&f.fdstore, "fd-store", "",
		"keep the mounts in the descriptor store at `SOCKET` too, which artifactfs\nkeep serves")
	flags.Var(cli.NewChoice(&f.onTerm, termAuto, termAuto, termUnmount, termLeave), "on-term",
		"at SIGTERM, unmount everything, leave the mounts for the\nnext daemon in the descriptor store, or leave them only\n"+
			"if systemd restarts the service (auto)")
	flags.Var(&a.Metrics, "metrics", "serve metrics (Prometheus) and profiles (pprof) at a socket, or\n"+
		"at an address of the loopback, which all users of this host can read;\n"+
		"at any other address, metrics only, with --metrics-token-file")
	flags.StringVar(&a.MetricsTokenFile, "metrics-token-file", "",
		"answer only requests for metrics that contain the token in `FILE`")
}

// check returns a usage error for an invalid duration, and for metrics that other hosts could read without a token.
func (f DaemonFlags) check(a *cli.App, cmd *cobra.Command) error {
	switch {
	case a.Metrics.Address.IsRemote() && a.MetricsTokenFile == "":
		return cli.Usage(cmd, fmt.Errorf("other hosts could read metrics at %s: add --metrics-token-file FILE",
			a.Metrics.Text))
	case a.Metrics.Text == "" && a.MetricsTokenFile != "":
		return cli.Usage(cmd, errors.New("--metrics-token-file needs --metrics"))
	case f.Idle < 0:
		return cli.Usage(cmd, errors.New("--idle-exit must not be negative"))
	case f.watchdog != 0 && f.watchdog < time.Second:
		return cli.Usage(cmd, errors.New("--watchdog must be at least 1s"))
	case f.onTerm == termLeave && f.fdstore == "" && !supervisor.Stores():
		return cli.Usage(cmd,
			errors.New("--on-term leave requires a descriptor store: add --fd-store SOCKET, and run artifactfs keep"))
	}
	return nil
}

// daemonArguments returns the arguments for starting a process of the daemon. All paths in these arguments are
// absolute, because the process may run in another directory.
func daemonArguments(a *cli.App, command string, f DaemonFlags) ([]string, error) {
	args := []string{command, "--state", a.State, "--idle-exit", f.Idle.String(), "--watchdog",
		f.watchdog.String(), "--log-format", a.LogFormat}
	for flag, path := range map[string]string{
		"--socket": a.DaemonSocket(), "--log-file": a.LogFile, "--metrics-token-file": a.MetricsTokenFile,
		"--fd-store": f.fdstore,
	} {
		if path == "" {
			continue
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("start daemon: %w", err)
		}
		args = append(args, flag, abs)
	}
	if a.LogLevel != "" {
		args = append(args, "--log-level", a.LogLevel)
	}
	if a.Metrics.Text != "" {
		args = append(args, "--metrics", a.Metrics.Text)
	}
	if f.restore {
		args = append(args, "--restore")
	}
	if f.storeFrom != "" {
		args = append(args, "--store-from", f.storeFrom)
	}
	if f.onTerm != termAuto && command == "daemon" {
		args = append(args, "--on-term", string(f.onTerm))
	}
	if a.Verbose {
		args = append(args, "--verbose")
	}
	return args, nil
}

// DaemonCommand returns the command "daemon".
func DaemonCommand(a *cli.App) *cobra.Command {
	var f DaemonFlags
	var upgrade bool
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Serve mounts for all commands that use the state directory",
		Long: `Daemon serves mounts until it receives SIGTERM or SIGINT. Then it unmounts all of them and exits. Each state directory
has one daemon. artifactfs mount starts it in the background if it is not running; run this command to put the daemon
under the control of a service manager.

The daemon consists of two processes: a worker, which serves the mounts, and a supervisor, which replaces the worker if
it dies or hangs. The mounts survive the replacement: requests wait until the new worker is ready, and none fails. Under
a service manager that stores file descriptors (systemd's FileDescriptorStoreMax), the mounts also survive a restart of
the service. In a container, artifactfs keep in another container is such a store: name its socket with --fd-store, and
add --on-term leave, so that a new container continues the mounts of the old one.

--upgrade replaces the running daemon by this version of artifactfs; no mount is interrupted. If the new version cannot
serve the mounts, the old version continues, and the exit code is 1.`,
		Example: `  artifactfs daemon --log-format json
  artifactfs daemon --idle-exit 10m
  artifactfs daemon --upgrade
  artifactfs daemon --fd-store /run/artifactfs/keep.sock --on-term leave
  artifactfs daemon --metrics unix:/run/artifactfs/metrics.sock`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(a, cmd); err != nil {
				return err
			}
			if upgrade {
				return upgradeDaemon(cmd.Context(), a)
			}
			var err error
			if f.storeFrom, err = cli.DirectoryFlag("daemon", "--store-from", f.storeFrom); err != nil {
				return err
			}
			return supervise(cmd.Context(), a, f)
		},
	}
	addDaemonFlags(a, cmd, &f)
	cmd.Flags().BoolVar(&upgrade, "upgrade", false, "replace the running daemon by this version of artifactfs")
	for _, other := range []string{"idle-exit", "restore", "watchdog", "metrics", "metrics-token-file", "fd-store",
		"on-term", "store-from"} {
		cmd.MarkFlagsMutuallyExclusive("upgrade", other)
	}
	return cmd
}

// supervise runs the supervisor, which starts the workers. It returns after the daemon has ended.
func supervise(ctx context.Context, a *cli.App, f DaemonFlags) error {
	if err := becomeDaemon(a); err != nil {
		return err
	}
	leadGroup()
	a.Serving = true
	// The supervisor has little data and little to do, so it may collect garbage often.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(supervisorMemory)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), supervisorProcs))
	log, closeLog, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	worker, err := daemonArguments(a, "worker", f)
	if err != nil {
		return err
	}
	own, err := daemonArguments(a, "daemon", f)
	if err != nil {
		return err
	}
	code := supervisor.Run(ctx, supervisor.Config{
		Executable: executable, WorkerArgs: worker, Args: own, Watchdog: f.watchdog, Spare: true,
		GiveUp: func(descriptors []keeper.Descriptor, reason string) error {
			return daemon.GiveUp(a.State, descriptors, reason, log)
		},
		StoreSocket: f.fdstore, StoreName: a.State, Leave: f.keepsMounts,
		Running: func() bool { return control.Listens(ctx, a.DaemonSocket()) },
		Log:     log,
	})
	if code != 0 {
		return cli.ExitCode(code) // The worker has already printed the reason.
	}
	return nil
}

// keepsMounts reports whether a daemon that receives SIGTERM leaves its mounts in the descriptor store.
func (f DaemonFlags) keepsMounts() bool {
	switch f.onTerm {
	case termLeave:
		return true
	case termUnmount:
		return false
	}
	return isRestarted()
}

// becomeDaemon does the setup that supervisor and worker have in common. It names the process, disables core dumps and
// changes to the root directory.
func becomeDaemon(a *cli.App) error {
	// The kernel names a process that was started through a descriptor after the descriptor's number. SetName changes
	// the name of the first thread, which is shown as the name of the process.
	_ = proc.SetName("artifactfs")
	if err := KeepMemory(); err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	// The process must not use a directory that a user may want to unmount, in particular not a directory in one of its
	// own mounts.
	for _, path := range []*string{&a.Socket, &a.LogFile, &a.MetricsTokenFile} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("start daemon: %w", err)
		}
		*path = abs
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	return nil
}

// leadGroup moves all processes of a daemon to a new process group, so that they can be signalled together. If the
// daemon has a terminal, it stays in the process group of its caller, so that Ctrl-C also reaches the daemon.
func leadGroup() {
	if unix.Getpgrp() == os.Getpid() {
		return
	}
	if tty, err := os.Open("/dev/tty"); err == nil {
		tty.Close()
		return
	}
	unix.Setpgid(0, 0)
}

package serving

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fdstore"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// defaultStore is the default of the flag --fd-store of keep.
const defaultStore = "/run/artifactfs/keep.sock"

// KeepCommand returns the command "keep".
func KeepCommand(a *cli.App) *cobra.Command {
	var list bool
	var socket string
	cmd := &cobra.Command{
		Use:   "keep",
		Short: "Keep the mounts of daemons while their containers are replaced",
		Long: `Keep is a descriptor store: it holds copies of the open files of daemons that were started with --fd-store SOCKET, so
that their mounts survive the end of all processes of the daemon. A daemon that starts later with the same state
directory continues the mounts; until then, programs that use them wait. systemd has such a store for services; keep is
one for daemons in containers. Run it in another container than the daemon, with the same /dev/fuse and user.

If keep itself ends, the daemons store their files in the next keep that serves SOCKET. Only if keep and a daemon end
together are the mounts of that daemon lost; their sessions are not.

Only processes of the same user can use SOCKET. The files contain tokens of mounts.`,
		Example: `  artifactfs keep --fd-store /run/artifactfs/keep.sock
  artifactfs daemon --fd-store /run/artifactfs/keep.sock --on-term leave
  artifactfs keep --list`,
		Args: cli.Arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return listKept(cmd.Context(), a, socket)
			}
			return keep(cmd.Context(), a, socket)
		},
	}
	cmd.Flags().StringVar(&socket, "fd-store", defaultStore, "serve `SOCKET`, which --fd-store of the daemons names")
	cmd.Flags().BoolVar(&list, "list", false, "print which daemons have stored files, and how many")
	return cmd
}

// keep serves the socket until ctx ends.
func keep(ctx context.Context, a *cli.App, socket string) error {
	_ = proc.SetName("artifactfs") // the name that the list of processes shows
	if err := KeepMemory(); err != nil {
		return fmt.Errorf("start descriptor store: %w", err)
	}
	a.Serving = true
	// A descriptor store has little data and little to do, so it may collect garbage often.
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(supervisorMemory)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), supervisorProcs))
	log, closeLog, err := a.NewLog(zapcore.InfoLevel)
	if err != nil {
		return err
	}
	defer closeLog()
	s, err := fdstore.Listen(socket, log)
	if err != nil {
		e := &control.Error{Code: control.ExitFailed, Verb: "serve descriptor store", Object: socket, Cause: err.Error()}
		if errors.Is(err, fdstore.ErrInUse) {
			e.Hint = "run artifactfs keep --list --fd-store SOCKET to see what it keeps, or name another socket"
		}
		return e
	}
	log.Info("keeping descriptors", zap.String("socket", socket))
	return s.Serve(ctx)
}

// listKept prints the contents of the descriptor store at the socket.
func listKept(ctx context.Context, a *cli.App, socket string) error {
	all, err := fdstore.List(ctx, socket)
	if err != nil {
		return &control.Error{Code: control.ExitFailed, Verb: "list descriptor store", Object: socket, Cause: err.Error(),
			Hint: "artifactfs keep must be running, as the same user, and serve this socket"}
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, all)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DAEMON\tRUNNING\tWAITING\tMOUNTS\tFILES")
	for _, k := range all {
		running := "no"
		if k.Running {
			running = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\n", k.Daemon, running, k.Waiting, k.Mounts, k.Files)
	}
	return w.Flush()
}

// Command artifactfs-csi is the CSI driver: artifactfs csi starts it. It is a program of its own because the libraries
// of the interface would make the start of artifactfs, which git starts for each command in a mount, slower by a
// millisecond and a half.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/artifactfs/artifactfs/container/csi"
	"github.com/artifactfs/artifactfs/container/volume"
	"github.com/artifactfs/artifactfs/control"
)

// version is set by the linker.
var version = "(devel)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "artifactfs: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		code := control.ExitFailed
		if errors.As(err, new(usageError)) {
			fmt.Fprintln(os.Stderr, "hint: artifactfs csi --help")
			code = control.ExitUsage
		}
		os.Exit(code)
	}
}

// usageError is the error for wrong arguments.
type usageError struct{ error }

// options holds the flags.
type options struct {
	csi.Config
	state     string
	services  []string
	logFormat string
	verbose   bool
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "artifactfs csi",
		Short: "Make mounts volumes of Kubernetes pods (CSI driver)",
		Long: `Csi is a driver of the Container Storage Interface: pods get mounts of repositories as volumes. It passes the requests of
the kubelet to the daemon of the node, which uses the same state directory, and has no privileges itself. A session can
be an ephemeral volume of one pod, or a persistent volume that moves between nodes; it is not deleted from a node before
all of it is on its session remote.

On each node, run it with --node; it registers itself with the kubelet. For persistent volumes that a StorageClass
describes, run it once with --services controller, beside external-provisioner. The directory deploy/ of the project has
the objects of Kubernetes.

Attributes of volumes, also the parameters of a StorageClass:
  ` + strings.Join(volume.Help(), "\n  ") + `

Secrets of volumes (nodePublishSecretRef, nodeStageSecretRef): token, sessionToken.`,
		Example: `  artifactfs csi --node "$NODE" --state /var/lib/artifactfs --csi-socket /csi/csi.sock --registration-dir /registration
  artifactfs csi --services controller --csi-socket /csi/csi.sock --state /var/lib/artifactfs`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Node, "node", os.Getenv("NODE_NAME"), "name of this node (default: $NODE_NAME)")
	f.StringVar(&o.state, "state", cmp.Or(os.Getenv("ARTIFACTFS_STATE"), "/var/lib/artifactfs"),
		"state directory of the daemon of this node")
	f.StringVar(&o.Socket, "csi-socket", "/csi/csi.sock", "serve requests at `SOCKET`")
	f.StringVar(&o.RegistrationDir, "registration-dir", "",
		"register with the kubelet that watches `DIR` (default: do not register)")
	f.StringVar(&o.KubeletSocket, "kubelet-socket", "", "`PATH` of --csi-socket for the kubelet (default:\n"+
		"/var/lib/kubelet/plugins/NAME/csi.sock)")
	f.StringVar(&o.Name, "name", csi.DefaultName, "`NAME` of the driver, which volumes refer to")
	f.StringSliceVar(&o.services, "services", []string{"node"}, "what to serve: node, controller, or both")
	f.StringVar(&o.Via, "via", os.Getenv("ARTIFACTFS_VIA"),
		"reach the remotes of volumes through the relay at `URL` (default:\n$ARTIFACTFS_VIA)")
	f.Int64Var(&o.MaxVolumes, "max-volumes", 0,
		"maximum `NUMBER` of volumes of this node (default: what the memory and the open\nfiles of this host permit)")
	f.StringVar(&o.logFormat, "log-format", "json", "format of the log: json or console")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each request")
	return cmd
}

// run serves until ctx ends.
func run(ctx context.Context, o options) error {
	for _, s := range o.services {
		if s != "node" && s != "controller" {
			return usageError{fmt.Errorf("unknown service %q: want node or controller", s)}
		}
	}
	node := slices.Contains(o.services, "node")
	switch {
	case node && o.Node == "":
		return usageError{errors.New("name of the node is missing: add --node NAME, or set $NODE_NAME")}
	case o.MaxVolumes < 0:
		return usageError{errors.New("--max-volumes must not be negative")}
	case o.logFormat != "json" && o.logFormat != "console":
		return usageError{fmt.Errorf("unknown log format %q: want json or console", o.logFormat)}
	}
	if !node {
		o.Node = ""
	}
	o.Controller, o.Version = slices.Contains(o.services, "controller"), version
	if o.KubeletSocket == "" {
		o.KubeletSocket = filepath.Join("/var/lib/kubelet/plugins", o.Name, "csi.sock")
	}
	if o.MaxVolumes == 0 {
		o.MaxVolumes = csi.MaxVolumes()
	}
	o.Volumes = filepath.Join(o.state, "csi")
	o.Dial = func(ctx context.Context) (csi.Daemon, error) {
		return control.Dial(ctx, control.DaemonSocket(o.state))
	}
	level := zap.InfoLevel
	if o.verbose {
		level = zap.DebugLevel
	}
	c := zap.NewProductionConfig()
	c.Level, c.Encoding, c.Sampling, c.DisableStacktrace, c.DisableCaller = zap.NewAtomicLevelAt(level), o.logFormat,
		nil, true, true
	c.EncoderConfig.EncodeTime, c.EncoderConfig.EncodeDuration = zapcore.RFC3339NanoTimeEncoder,
		zapcore.StringDurationEncoder
	log, err := c.Build()
	if err != nil {
		return fmt.Errorf("start driver: %w", err)
	}
	defer log.Sync()
	o.Log = log
	if err := csi.Run(ctx, o.Config); err != nil {
		return fmt.Errorf("serve CSI driver %s: %w", o.Name, err)
	}
	return nil
}

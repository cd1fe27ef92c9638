// Command artifactfs mounts git repositories. The whole tree appears after about one network round trip, and contents are fetched
// when they are read.
//
// Each file contains one command: its flags, its help, and its requests to a daemon. Package daemon does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/hosting"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/mounts"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/sessions"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/host/mount/inotify"
	"github.com/spf13/cobra"
)

// main runs the command line, the helper of mount(8), or git's fsmonitor hook, depending on the name of the program. Before that,
// it removes secrets from the arguments and the environment of the process.
func main() {
	if query.IsHook(os.Args[0]) { // the separate hook program is not installed, so this program acts as the hook
		os.Exit(query.Hook(os.Args, os.Stdout))
	}
	if inotify.IsProcess(os.Args) {
		os.Exit(inotify.Run(os.Args[1], os.Stdin))
	}
	serving.HideSecrets()
	cli.CompleteEnvironment()
	cli.Version = versionText()
	// Remove the tokens from the environment, so that no child process inherits them.
	token := control.Secret(os.Getenv(cli.TokenVariable))
	os.Unsetenv(cli.TokenVariable)
	sessionToken := control.Secret(os.Getenv(cli.SessionTokenVariable))
	os.Unsetenv(cli.SessionTokenVariable)
	server := cli.ServerAccess{URL: os.Getenv(cli.ServerVariable), Token: control.Secret(os.Getenv(cli.ServerTokenVariable)),
		TokenFile: os.Getenv(cli.ServerTokenFileVariable)}
	os.Unsetenv(cli.ServerTokenVariable)
	forgeToken := control.Secret(os.Getenv(cli.ForgeTokenVariable))
	os.Unsetenv(cli.ForgeTokenVariable)
	a := &cli.App{Stdout: os.Stdout, Stderr: os.Stderr, Token: token, SessionToken: sessionToken, ForgeToken: forgeToken, Server: server,
		NewHost: cli.NewHost}
	if name := helper(os.Args[0]); name != "" {
		os.Exit(runHelper(a, name, os.Args[1:]))
	}
	os.Exit(run(a, os.Args[1:]))
}

// run runs the command line and returns the exit code. With --json, an error is also printed to stdout as JSON.
func run(a *cli.App, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), deadlySignals()...)
	defer stop()
	context.AfterFunc(ctx, func() {
		if !a.Serving {
			stop() // restore the default action, so that a second Ctrl-C ends the process at once
		}
	})
	root := rootCommand(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return control.ExitDone
	}
	if !a.Running {
		err = cli.Usage(cmd, err)
	}
	var exit cli.ExitCode
	if errors.As(err, &exit) {
		return int(exit)
	}
	e := control.AsError(err)
	cli.PrintError(a.Stderr, e)
	if a.JSON || !a.Running && asksForJSON(args) {
		if err := cli.PrintJSON(a.Stdout, e.Report()); err != nil {
			cli.PrintError(a.Stderr, control.AsError(err))
		}
	}
	return e.Code
}

// asksForJSON reports whether the unparsed arguments contain --json before the argument "--". Arguments after "--" belong to
// another program.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// deadlySignals returns the signals that end a command. It leaves out signals that the parent process has made this process
// ignore, as nohup and non-interactive shells do.
func deadlySignals() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// rootCommand returns the root command with all commands and global flags.
func rootCommand(a *cli.App) *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:                   "artifactfs COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Mount git repositories: the tree at once, contents when they are read",
		Long: `artifactfs mounts a git repository at a directory. Its files and directories can be listed after about one network round
trip, however large the repository is. File contents are fetched when they are read, and in the background before they
are read.

A background daemon serves the mounts. The first mount starts the daemon, and it exits after 5 minutes without a mount.
mount --foreground serves a mount without the daemon.

Changes and commits made in a mount belong to a session. The daemon automatically saves the session in checkpoints. With
mount --session-remote it also pushes them to a git repository of yours, from which another machine can resume the
session.

Exit codes: 0 success; 1 failure; 2 wrong arguments; 3 remote unreachable, access refused, or not found; 4 no such mount
or session; 5 success, but not everything is on the session remote yet. With --json, a command that fails prints the
error as the last line of stdout: {"error":{"code":"not-found","message":"...","hint":"...","retryable":false}};
doc/internals/protocol/README.md lists the codes.`,
		Example: `  artifactfs mount https://github.com/git/git
  ls git && artifactfs status git
  artifactfs unmount git`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			e := &control.Error{Code: control.ExitUsage, Cause: fmt.Sprintf("unknown command %q", args[0]), Hint: "artifactfs --help"}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				e.Hint = "did you mean " + near[0] + "?"
			}
			return e
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if showVersion {
				return printVersion(a)
			}
			return cmd.Help()
		},
		PersistentPreRunE: a.Init,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		// Set Cobra's default distance, because SuggestionsFor would return nothing with 0.
		SuggestionsMinimumDistance: 2,
	}
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetHelpCommand(helpCommand(root))
	root.SetUsageTemplate(usageTemplate)
	root.Flags().BoolVar(&showVersion, "version", false, "print the version, as artifactfs version does")
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&a.State, "state", "", "store everything in `DIR`, the state directory (default: $ARTIFACTFS_STATE, else\n"+
		"/var/lib/artifactfs for root, ~/.local/state/artifactfs for other users)")
	f.StringVar(&a.Socket, "socket", "", "use only the daemon whose socket is `PATH` (default: all daemons of the\nstate directory)")
	f.BoolVar(&a.JSON, "json", false, "print the result as JSON")
	f.BoolVarP(&a.Verbose, "verbose", "v", false, "print progress and details on stderr, even if stderr is not a terminal")
	f.StringVar(&a.LogFile, "log-file", "", "write the log to `FILE` (default: stderr; for the background daemon\n"+
		"log/daemon.log in the state directory)")
	f.Var(cli.NewChoice(&a.LogLevel, "", "debug", "info", "warn", "error"), "log-level",
		"least severe level that is logged (default: info for a daemon, else warn)")
	f.Var(cli.NewChoice(&a.LogFormat, "console", "console", "json"), "log-format", "format of the log")
	root.AddCommand(mounts.MountCommand(a), unmountCommand(a), runCommand(a), statusCommand(a), listCommand(a), prefetchCommand(a),
		switchCommand(a), mounts.RefreshCommand(a), checkpointCommand(a), syncCommand(a), sessions.SessionCommand(a), traceCommand(a),
		topCommand(a), uiCommand(a),
		cacheCommand(a), profileCommand(a),
		serving.DaemonCommand(a), serving.WorkerCommand(a), serving.KeepCommand(a), serving.CSICommand(a),
		doctorCommand(a), versionCommand(a), completionCommand(a),
		manCommand(a), hosting.ServeCommand(a), hosting.RelayCommand(a), hosting.RepoCommand(a), hosting.TokenCommand(a),
		hosting.NamespaceCommand(a),
		serving.PromisorCommand(a), serving.CredentialCommand(a), mcpCommand(a))
	for name, values := range map[string][]string{"log-level": {"debug", "info", "warn", "error"}, "log-format": {"console", "json"}} {
		cli.CompleteFlag(root, name, values...)
	}
	return root
}

// helpCommand returns the command that prints the same as --help. It is hidden, because each help text names --help.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = root.Args(root, args)
			}
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// usageTemplate replaces cobra's template of help texts.
const usageTemplate = `Usage:
  {{.UseLine}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}
{{- if .HasAvailableSubCommands}}

Commands:
{{- range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}
{{- end}}{{end}}
{{- end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}
{{- if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{- end}}
{{- if .HasAvailableSubCommands}}

Run "{{.CommandPath}} COMMAND --help" for the help of a command.
{{- end}}
`

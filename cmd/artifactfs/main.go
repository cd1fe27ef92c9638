// Command artifactfs mounts git repositories. The whole tree appears after about one network round trip, and contents
// are fetched when they are read.
//
// Each file contains one command: its flags, its help, and its requests to a daemon. Package daemon does the work.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/namespace"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/host/mount/inotify"
	"github.com/spf13/cobra"
)

// main runs the command line, the helper of mount(8), or git's fsmonitor hook, depending on the name of the program.
// Before that, it removes secrets from the arguments and the environment of the process.
func main() {
	if query.IsHook(os.Args[0]) { // the separate hook program is not installed, so this program acts as the hook
		os.Exit(query.Hook(os.Args, os.Stdout))
	}
	if inotify.IsProcess(os.Args) {
		os.Exit(inotify.Run(os.Args[1], os.Stdin))
	}
	if namespace.IsProcess(os.Args) {
		os.Exit(runInNamespace(os.Args))
	}
	serving.HideSecrets()
	cli.CompleteEnvironment()
	cli.Version = versionText()
	environ := os.Environ()
	// Remove the tokens from the environment, so that no child process inherits them.
	token := control.Secret(os.Getenv(cli.TokenVariable))
	os.Unsetenv(cli.TokenVariable)
	sessionToken := control.Secret(os.Getenv(cli.SessionTokenVariable))
	os.Unsetenv(cli.SessionTokenVariable)
	server := cli.ServerAccess{URL: os.Getenv(cli.ServerVariable),
		Token:     control.Secret(os.Getenv(cli.ServerTokenVariable)),
		TokenFile: os.Getenv(cli.ServerTokenFileVariable)}
	os.Unsetenv(cli.ServerTokenVariable)
	forgeToken := control.Secret(os.Getenv(cli.ForgeTokenVariable))
	os.Unsetenv(cli.ForgeTokenVariable)
	a := &cli.App{Stdout: os.Stdout, Stderr: os.Stderr, Token: token, SessionToken: sessionToken, ForgeToken: forgeToken,
		Server:  server,
		NewHost: cli.NewHost}
	if name := helper(os.Args[0]); name != "" {
		os.Exit(runHelper(a, name, os.Args[1:]))
	}
	os.Exit(run(a, os.Args[1:], environ))
}

// replacing is the environment variable by which a program that is replaced by artifactfs-server passes its version.
const replacing = "ARTIFACTFS_REPLACING"

// run runs the command line and returns the exit code. With --json, an error is also printed to stdout as JSON. environ
// is the environment of a program that replaces this one.
func run(a *cli.App, args, environ []string) int {
	root := rootCommand(a)
	root.SetArgs(args)
	cmd, err := root, replace(root, args, environ) // before signals are caught, of which the other program would not know
	ctx, stop := signal.NotifyContext(context.Background(), deadlySignals()...)
	defer stop()
	context.AfterFunc(ctx, func() {
		if !a.Serving {
			stop() // restore the default action, so that a second Ctrl-C ends the process at once
		}
	})
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
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

// asksForJSON reports whether the unparsed arguments contain --json before the argument "--". Arguments after "--"
// belong to another program.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// deadlySignals returns the signals that end a command. It leaves out signals that the parent process has made this
// process ignore, as nohup and non-interactive shells do.
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
		Long:                  rootText + "\n\n" + exitCodes,
		Example: `  artifactfs mount https://github.com/git/git
  ls git && artifactfs status git
  artifactfs unmount git`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
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
	cli.SetHelp(root)
	root.Flags().BoolVar(&showVersion, "version", false, "print the version, as artifactfs version does")
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&a.State, "state", "",
		"store everything in `DIR`, the state directory (default: $ARTIFACTFS_STATE, else\n"+
			"/var/lib/artifactfs for root, ~/.local/state/artifactfs for other users)")
	f.StringVar(&a.Socket, "socket", "",
		"use only the daemon whose socket is `PATH` (default: all daemons of the\nstate directory)")
	f.BoolVar(&a.JSON, "json", false, "print the result as JSON")
	f.BoolVarP(&a.Verbose, "verbose", "v", false, "print progress and details on stderr, even if stderr is not a terminal")
	f.StringVar(&a.LogFile, "log-file", "", "write the log to `FILE` (default: stderr; for the background daemon\n"+
		"log/daemon.log in the state directory)")
	f.Var(cli.NewChoice(&a.LogLevel, "", "debug", "info", "warn", "error"), "log-level",
		"least severe level that is logged (default: info for a daemon, else warn)")
	f.Var(cli.NewChoice(&a.LogFormat, "console", "console", "json"), "log-format", "format of the log")
	addCommands(root, a)
	for name, values := range map[string][]string{"log-level": {"debug", "info", "warn", "error"},
		"log-format": {"console", "json"}} {
		cli.CompleteFlag(root, name, values...)
	}
	return root
}

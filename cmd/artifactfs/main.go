// Command artifactfs mounts git repositories: the whole tree in about one network round trip, contents when they
// are read.
//
// One file holds one command: its flags, its help, and what it asks of a daemon. The work is done in package daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/daemon"
	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tokenVariable holds a token for the remote. It is read once and forgotten, so that no child process inherits it.
const tokenVariable = "ARTIFACTFS_TOKEN"

// sessionTokenVariable is the same for the session remote.
const sessionTokenVariable = "ARTIFACTFS_SESSION_TOKEN"

func main() {
	if query.IsHook(os.Args[0]) { // where the small program for it is not installed
		os.Exit(query.Hook(os.Args, os.Stdout))
	}
	hideSecrets()
	completeEnvironment()
	token := control.Secret(os.Getenv(tokenVariable))
	os.Unsetenv(tokenVariable)
	sessionToken := control.Secret(os.Getenv(sessionTokenVariable))
	os.Unsetenv(sessionTokenVariable)
	a := &app{stdout: os.Stdout, stderr: os.Stderr, token: token, sessionToken: sessionToken, newHost: newHost}
	if name := helper(os.Args[0]); name != "" {
		os.Exit(runHelper(a, name, os.Args[1:]))
	}
	os.Exit(a.run(os.Args[1:]))
}

// app is one run of the command line: the global flags, and what the commands share.
type app struct {
	stdout, stderr *os.File
	token          control.Secret
	sessionToken   control.Secret
	newHost        func(daemon.Config) (host, error)

	state, socket                string
	json, verbose, quiet         bool
	logFile, logLevel, logFormat string
	metrics                      metricsAddress // of a daemon

	// Of a mount: it is not to be there again after a restart of the machine, and how to get to its directory.
	passing bool
	through string

	began   bool // the arguments were fine and a command runs
	serving bool // this process has mounts of its own: a second signal must not kill it
}

// run gives the exit code.
func (a *app) run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), deadlySignals()...)
	defer stop()
	context.AfterFunc(ctx, func() {
		if !a.serving {
			stop() // whoever presses Ctrl-C twice does not want to wait
		}
	})
	root := a.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return control.ExitDone
	}
	if !a.began {
		err = usage(cmd, err)
	}
	var exit exitCode
	if errors.As(err, &exit) {
		return int(exit)
	}
	e := control.AsError(err)
	printError(a.stderr, e)
	if a.json || !a.began && asksForJSON(args) {
		if err := printJSON(a.stdout, e.Report()); err != nil {
			printError(a.stderr, control.AsError(err))
		}
	}
	return e.Code
}

// asksForJSON reports whether arguments that could not be read as flags have --json among them. What follows -- is another
// program's.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// deadlySignals leaves out what our parent wants ignored, as nohup and non-interactive shells do.
func deadlySignals() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

func printError(w io.Writer, e *control.Error) {
	fmt.Fprintf(w, "artifactfs: %s\n", e.Error())
	if e.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", (&control.Error{Cause: e.Hint}).Error())
	}
}

// usage makes a failure of exit code 2 with the way to the command's help.
func usage(cmd *cobra.Command, err error) error {
	var e *control.Error
	if errors.As(err, &e) {
		return err
	}
	verb := cmd.Name()
	if cmd == cmd.Root() {
		verb = ""
	}
	return &control.Error{Code: control.ExitUsage, Verb: verb, Cause: flagText(err), Hint: cmd.CommandPath() + " --help"}
}

// flagText says what is wrong with a flag in words of a person, not of the packages that read it.
func flagText(err error) string {
	var bad *pflag.InvalidValueError
	var number *strconv.NumError
	if !errors.As(err, &bad) {
		return err.Error()
	}
	why := ""
	switch {
	case errors.As(err, &number) && errors.Is(number.Err, strconv.ErrRange):
		why = "out of range"
	case errors.As(err, &number) && bad.GetFlag().Value.Type() == "bool":
		why = "must be true or false"
	case errors.As(err, &number):
		why = "not a number"
	case bad.GetFlag().Value.Type() == "duration":
		why = "not a time; examples are 30s and 5m"
	default:
		return err.Error()
	}
	return fmt.Sprintf("invalid argument %q for \"--%s\" flag: %s", bad.GetValue(), bad.GetFlag().Name, why)
}

// reason is what the system said, without what it was about.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

func (a *app) rootCommand() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:                   "artifactfs COMMAND",
		DisableFlagsInUseLine: true,
		Short:                 "Mount git repositories: the tree at once, contents when they are read",
		Long: `artifactfs mounts a git repository at a directory. The whole tree can be read after about one network round trip,
however large the repository is. File contents are fetched when they are read, and ahead of reads in the background.

A background daemon serves the mounts. The first mount starts it, and it exits when it has had no mount for a while;
mount --foreground runs without it. Changes and commits made in a mount belong to a session. The daemon makes
checkpoints of the session automatically and can push them to a git repository of yours, from which the session can be
resumed on another machine.

Exit codes: 0 success; 1 failure; 2 wrong arguments; 3 remote unreachable, refused or not found; 4 no such mount or
session; 5 success, but not everything is on the session remote yet. With --json the last line of stdout is the error:
{"error":{"code":"not-found","message":"...","hint":"...","retryable":false}}; doc/protocol.md lists the codes.`,
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
		PersistentPreRunE: a.begin,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		// Cobra's own distance; SuggestionsFor ignores everything at zero.
		SuggestionsMinimumDistance: 2,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	root.SetUsageTemplate(usageTemplate)
	root.Flags().BoolVar(&showVersion, "version", false, "print the version, as artifactfs version does")
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVar(&a.state, "state", "", "keep everything in `DIR` (default: $ARTIFACTFS_STATE, else\n/var/lib/artifactfs for root, ~/.local/state/artifactfs for others)")
	f.StringVar(&a.socket, "socket", "", "talk to the daemon at `PATH` (default: all of the state directory)")
	f.BoolVar(&a.json, "json", false, "print the result as JSON")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "print more on stderr, even if it is not a terminal")
	f.StringVar(&a.logFile, "log-file", "", "log to `FILE` (default: stderr; background daemon: DIR/log/daemon.log)")
	f.Var(newChoice(&a.logLevel, "", "debug", "info", "warn", "error"), "log-level", "log from this level up (default: info for a daemon, else warn)")
	f.Var(newChoice(&a.logFormat, "console", "console", "json"), "log-format", "how to write the log")
	root.AddCommand(mountCommand(a), unmountCommand(a), runCommand(a), statusCommand(a), listCommand(a), prefetchCommand(a), switchCommand(a), refreshCommand(a), checkpointCommand(a), syncCommand(a), sessionCommand(a), traceCommand(a), cacheCommand(a),
		daemonCommand(a), workerCommand(a), doctorCommand(a), versionCommand(a), completionCommand(a), promisorCommand(a), credentialCommand(a), mcpCommand(a))
	for name, values := range map[string][]string{"log-level": {"debug", "info", "warn", "error"}, "log-format": {"console", "json"}} {
		completeFlag(root, name, values...)
	}
	return root
}

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

// begin runs between the check of the arguments and the command.
func (a *app) begin(cmd *cobra.Command, args []string) error {
	if err := flagsFromEnvironment(cmd); err != nil {
		return err
	}
	state, err := control.StateDir(a.state)
	if err != nil {
		return err
	}
	a.state, a.began = state, true
	return nil
}

// completeFlag offers the values of a flag to the shell.
func completeFlag(cmd *cobra.Command, name string, values ...string) {
	// It fails only for a flag that does not exist, and then every test of the command line does.
	if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

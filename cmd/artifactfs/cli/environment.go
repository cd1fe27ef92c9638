package cli

import (
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactfs/artifactfs/control"
)

// environmentPrefix is in front of every variable that stands for a flag or an argument.
const environmentPrefix = "ARTIFACTFS_"

// FromEnvironment marks a command whose own flags may be given by environment variables. The other commands name what they
// mean on their command line: a session's name that was left in the environment must not choose what is unmounted.
var FromEnvironment = map[string]string{"environment": "flags"}

// Everywhere are the global flags that any command takes from the environment; --state has always been one.
var Everywhere = []string{"state", "socket", "log-file", "log-level", "log-format"}

// variable is the name of a flag's environment variable.
func variable(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagsFromEnvironment sets the flags that were not given and have a variable, as if they had been given. Those of the
// command itself mean this one run of it: no child of ours inherits them.
func flagsFromEnvironment(cmd *cobra.Command) error {
	var first error
	set := func(f *pflag.Flag) {
		value := os.Getenv(variable(f.Name))
		if !slices.Contains(Everywhere, f.Name) {
			os.Unsetenv(variable(f.Name))
		}
		if first != nil || f.Changed || value == "" || f.Name == "help" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			first = &control.Error{Code: control.ExitUsage, Verb: cmd.Name(), Object: "$" + variable(f.Name), Cause: flagCause(err), Hint: cmd.CommandPath() + " --help"}
		}
	}
	for _, name := range Everywhere {
		set(cmd.Flags().Lookup(name))
	}
	if cmd.Annotations["environment"] != "" {
		cmd.LocalNonPersistentFlags().VisitAll(set)
	}
	return first
}

// flagCause leaves out what pflag says about how the flag would have been written.
func flagCause(err error) string {
	text := flagText(err)
	if i := strings.LastIndex(text, "flag: "); i >= 0 {
		return text[i+len("flag: "):]
	}
	return text
}

// EnvironmentArguments returns the arguments that stand in variables, up to the first that is empty, and forgets them: a
// remote may have a secret in it.
func EnvironmentArguments(names ...string) (args []string) {
	for i, name := range names {
		value := os.Getenv(environmentPrefix + name)
		os.Unsetenv(environmentPrefix + name)
		if value != "" && len(args) == i {
			args = append(args, value)
		}
	}
	return args
}

// SearchPath is the PATH of a process that was started without one: that of login(1), with root's directories.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CompleteEnvironment sets what git and the programs it starts rely on. mount(8) takes PATH and HOME from its helpers, and
// a service of the system has no HOME.
func CompleteEnvironment() {
	if os.Getenv("PATH") == "" {
		os.Setenv("PATH", SearchPath)
	}
	if os.Getenv("HOME") != "" {
		return
	}
	if u, err := user.Current(); err == nil && u.HomeDir != "" {
		os.Setenv("HOME", u.HomeDir)
	}
}

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

// environmentPrefix is the prefix of the name of every environment variable that sets a flag or an argument.
const environmentPrefix = "ARTIFACTFS_"

// FromEnvironment is the annotation of a command whose flags may be set by environment variables. Other commands ignore
// such variables. Otherwise, for example, a session name that was left in the environment could select the session to
// unmount.
var FromEnvironment = map[string]string{"environment": "flags"}

// Everywhere lists the global flags that every command reads from the environment.
var Everywhere = []string{"state", "socket", "log-file", "log-level", "log-format"}

// variable returns the name of a flag's environment variable.
func variable(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagsFromEnvironment sets the flags that are missing on the command line from their environment variables. It removes
// the variables of the command's own flags, so that child processes do not inherit them.
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
			first = &control.Error{Code: control.ExitUsage, Verb: cmd.Name(), Object: "$" + variable(f.Name),
				Cause: flagCause(err), Hint: helpAbout(cmd, err)}
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

// flagCause returns the reason why a value was refused, without pflag's text about the flag's syntax.
func flagCause(err error) string {
	text := flagText(err)
	if i := strings.LastIndex(text, "flag: "); i >= 0 {
		return text[i+len("flag: "):]
	}
	return text
}

// EnvironmentArguments returns the values of the environment variables with these names, up to the first empty one, as
// arguments. It removes the variables from the environment, because the URL of a remote may contain a secret.
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

// SearchPath is the PATH for a process that was started without the variable PATH. It is the PATH of login(1), with
// root's directories.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CompleteEnvironment sets PATH and HOME if they are missing, because git and the programs that git starts need both.
// mount(8) removes both variables for its helpers, and a system service has no HOME.
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

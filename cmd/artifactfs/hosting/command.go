package hosting

import (
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/server/client"
)

// runFunc is the function that cobra calls to run a command.
type runFunc = func(cmd *cobra.Command, args []string) error

// group adds subcommands to cmd, which only has subcommands, and adds the flags that select the server. group returns
// cmd.
func (o *Connection) group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	o.AddFlags(cmd)
	cmd.AddCommand(subcommands...)
	return cmd
}

// run returns the function of a command that uses the server. The function connects to the server, calls use, and
// explains the error that use returns.
func (o *Connection) run(a *cli.App, use func(cmd *cobra.Command, c *Access, args []string) error) runFunc {
	return func(cmd *cobra.Command, args []string) error {
		c, err := Connect(a, *o)
		if err != nil {
			return err
		}
		return explain(c, use(cmd, c, args))
	}
}

// runRepo is like run, for a command whose first argument is the name of a repository. use gets the parsed name, and
// the other arguments in rest.
func (o *Connection) runRepo(a *cli.App, use func(cmd *cobra.Command, c *Access, n name, rest []string) error) runFunc {
	return func(cmd *cobra.Command, args []string) error {
		n, err := parseName(args[0])
		if err != nil {
			return cli.Usage(cmd, err)
		}
		return o.run(a, func(cmd *cobra.Command, c *Access, args []string) error { return use(cmd, c, n, args[1:]) })(cmd,
			args)
	}
}

// ChoiceFlag adds a flag that accepts only the given values, and completes them. Without the flag, *value is initial.
func ChoiceFlag(cmd *cobra.Command, value *string, initial, flag, usage string, values ...string) {
	cmd.Flags().Var(cli.NewChoice(value, initial, values...), flag, usage)
	cli.CompleteFlag(cmd, flag, values...)
}

// confirm asks the user whether to delete an object of the server, unless yes is set.
func (c *Access) confirm(a *cli.App, object string, yes bool) error {
	if yes {
		return nil
	}
	object += " of " + c.URL()
	return cli.Ask(a, "delete", object, "delete "+object+"?")
}

// printList reads a list from the server and prints it. With --json, it prints an object whose member key is the list.
// Otherwise it prints a table with a line for each item, or nothing if the list is empty; tabs separate the columns of
// header and of the lines. If limit is above 0, it is the maximum number of items.
func printList[T any](a *cli.App, key string, limit int, items iter.Seq2[T, error], header string,
	line func(T) string) error {
	all := []T{}
	for item, err := range items {
		if err != nil {
			return err
		}
		if all = append(all, item); len(all) == limit {
			break
		}
	}
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string][]T{key: all})
	}
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, item := range all {
		fmt.Fprintln(w, line(item))
	}
	return cli.Printed(w.Flush())
}

// columns joins the columns of one line for printList.
func columns(texts ...string) string { return strings.Join(texts, "\t") }

// printToken prints a new token. It prints the description of the token to standard error, so that standard output
// contains only the secret.
func printToken(a *cli.App, made client.NewToken, rights string) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, made)
	}
	until := "does not expire"
	if !made.Expires.IsZero() {
		until = "expires " + localTime(made.Expires)
	}
	fmt.Fprintf(a.Stderr, "artifactfs: token %s (%s) %s\n", made.ID, rights, until)
	return PrintLine(a.Stdout, made.Plaintext)
}

// localTime returns a time as text in the time zone of the user.
func localTime(t time.Time) string { return t.Local().Format(time.DateTime) }

// PrintDone prints a line that states what a command has done: the verb and the object.
func PrintDone(a *cli.App, verb, object string) error {
	if a.JSON {
		return cli.PrintJSON(a.Stdout, map[string]string{verb: object})
	}
	return PrintLine(a.Stdout, verb+" "+object)
}

// PrintLine prints a line.
func PrintLine(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, text)
	return cli.Printed(err)
}

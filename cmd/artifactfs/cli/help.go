package cli

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// These are the keys of annotations of commands and flags. The help pages are made from the annotations.
const (
	briefText    = "brief"         // text of the page without --all, instead of the command's Long
	briefExample = "brief-example" // examples of the page without --all
	briefTail    = "brief-tail"    // lines at the end of the page without --all
	onlyWithAll  = "only-with-all" // annotation of a flag: the page lists the flag only with --all
	renamed      = "renamed"       // annotation of a hidden command: the name of the visible command that does the same
)

// hiddenGroup begins the ID of a group that a page lists only with --all.
const hiddenGroup = "all: "

// Group is a heading in the help of a command, with the commands below it.
type Group struct {
	Title    string
	OnlyAll  bool // whether only --help --all lists the group
	Commands []*cobra.Command
}

// AddGroups adds commands to parent, in the groups in which the help of parent lists them.
func AddGroups(parent *cobra.Command, groups ...Group) {
	for _, g := range groups {
		id := g.Title
		if g.OnlyAll {
			id = hiddenGroup + id
		}
		parent.AddGroup(&cobra.Group{ID: id, Title: g.Title + ":"})
		for _, c := range g.Commands {
			c.GroupID = id
		}
		parent.AddCommand(g.Commands...)
	}
}

// Brief is the text that the help of a command prints without --all. For an empty field, the help prints the same text
// as with --all.
type Brief struct {
	Text, Example string
	Flags         []string // names of the flags to list
	Tail          string   // lines at the end of the page
}

// SetBrief sets what the help of the command prints without --all. The flags of the command must exist.
func SetBrief(cmd *cobra.Command, b Brief) {
	marks := maps.Clone(cmd.Annotations) // Several commands may share one map of annotations, so change a copy.
	if marks == nil {
		marks = map[string]string{}
	}
	for key, text := range map[string]string{briefText: b.Text, briefExample: b.Example, briefTail: b.Tail} {
		if text != "" {
			marks[key] = text
		}
	}
	cmd.Annotations = marks
	if len(b.Flags) == 0 {
		return
	}
	listed := map[string]bool{}
	for _, name := range b.Flags {
		if cmd.Flags().Lookup(name) == nil {
			panic("there is no flag --" + name + " of " + cmd.Name())
		}
		listed[name] = true
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !listed[f.Name] {
			f.Annotations = maps.Clone(f.Annotations)
			if f.Annotations == nil {
				f.Annotations = map[string][]string{}
			}
			f.Annotations[onlyWithAll] = nil
		}
	})
}

// Renamed makes cmd a hidden command with its former name, old. The parameter now is the command line of its present
// name, which the help and the hints of errors name.
func Renamed(cmd *cobra.Command, old, now string) *cobra.Command {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	cmd.Use, cmd.Hidden = old+" "+arguments, true
	cmd.Long = "This is the former name of " + now + ".\n\n" + cmd.Long
	cmd.Annotations = map[string]string{renamed: now}
	return cmd
}

// helpAbout returns the command line that prints the help about err, an error of the command cmd. The command line
// contains --all if err is about a flag that does not exist, or one that the help lists only with --all.
func helpAbout(cmd *cobra.Command, err error) string {
	line := annotated(cmd, renamed, cmd.CommandPath()) + " --help"
	more := func(f *pflag.Flag) bool { _, ok := f.Annotations[onlyWithAll]; return ok }
	var invalid *pflag.InvalidValueError
	var missing *pflag.NotExistError
	switch {
	case errors.As(err, &invalid) && more(invalid.GetFlag()):
		line += " --all"
	case errors.As(err, &missing):
		found := false
		cmd.Flags().VisitAll(func(f *pflag.Flag) { found = found || more(f) })
		if found {
			line += " --all"
		}
	}
	return line
}

// SetHelp sets the help of root and all commands below it. It adds the flag --all to root: with this flag, the help
// lists everything.
func SetHelp(root *cobra.Command) {
	root.PersistentFlags().Bool("all", false, "with --help: print all flags and all commands")
	// Hide the flag: every page that omits something mentions it.
	if err := root.PersistentFlags().MarkHidden("all"); err != nil {
		panic(err)
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { fmt.Fprint(cmd.OutOrStdout(), helpPage(cmd, forAll(cmd))) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprint(cmd.OutOrStderr(), helpPage(cmd, false))
		return err
	})
}

// forAll reports whether the command line has the flag --all that SetHelp has added. It returns false for a command
// with its own flag of this name.
func forAll(cmd *cobra.Command) bool {
	f := cmd.Root().PersistentFlags().Lookup("all")
	return f != nil && f.Value.String() == "true"
}

// onlyForHelp returns an error if a command that does not print help was called with --all.
func onlyForHelp(cmd *cobra.Command) error {
	if forAll(cmd) && cmd.Name() != "help" {
		return errors.New("--all is possible only with --help")
	}
	return nil
}

// helpPage returns the help of a command. If all is set, the help contains all groups of commands and all flags.
func helpPage(cmd *cobra.Command, all bool) string {
	text, example, tail := cmd.Long, cmd.Example, ""
	if !all {
		text, example = annotated(cmd, briefText, text), annotated(cmd, briefExample, example)
		tail = annotated(cmd, briefTail, "")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n", strings.TrimSpace(text), cmd.UseLine())
	if example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.TrimRight(example, "\n"))
	}
	writeCommands(&b, cmd, all)
	left := writeFlags(&b, cmd, all)
	if tail != "" {
		fmt.Fprintf(&b, "\n%s", tail)
	}
	b.WriteByte('\n')
	if left > 0 {
		fmt.Fprintf(&b, "%d more flags: %s --help --all\n", left, cmd.CommandPath())
	}
	if cmd.HasParent() || !all {
		fmt.Fprintf(&b, "Global flags (--json, --state, -v, ...): %s help --all\n", cmd.Root().Name())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "Run \"%s COMMAND --help\" for the help of a command.\n", cmd.CommandPath())
	}
	return b.String()
}

// annotated returns the command's annotation key or, if there is none, the text in the parameter otherwise.
func annotated(cmd *cobra.Command, key, otherwise string) string {
	if text, ok := cmd.Annotations[key]; ok {
		return text
	}
	return otherwise
}

// writeCommands lists the commands below cmd, in its groups and then those without a group.
func writeCommands(b *strings.Builder, cmd *cobra.Command, all bool) {
	width := 0
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			width = max(width, len(c.Name()))
		}
	}
	list := func(title, id string) {
		for _, c := range cmd.Commands() {
			if c.GroupID != id || !c.IsAvailableCommand() {
				continue
			}
			if title != "" {
				fmt.Fprintf(b, "\n%s\n", title)
				title = ""
			}
			fmt.Fprintf(b, "  %-*s  %s\n", width, c.Name(), c.Short)
		}
	}
	for _, g := range cmd.Groups() {
		if all || !strings.HasPrefix(g.ID, hiddenGroup) {
			list(g.Title, g.ID)
		}
	}
	list("Commands:", "")
}

// writeFlags lists the flags of cmd. If all is false, it omits some of them and returns their number in left. Global
// flags are flags of the root command, whose help lists them only with --all.
func writeFlags(b *strings.Builder, cmd *cobra.Command, all bool) (left int) {
	if !cmd.HasParent() && !all {
		return 0
	}
	list := func(title string, from *pflag.FlagSet, skip *pflag.FlagSet) {
		listed := pflag.NewFlagSet("", pflag.ContinueOnError)
		listed.SortFlags = false
		from.VisitAll(func(f *pflag.Flag) {
			if _, more := f.Annotations[onlyWithAll]; f.Hidden || f.Name == "help" || skip.Lookup(f.Name) == f {
				return
			} else if more && !all {
				left++
				return
			}
			listed.AddFlag(f)
		})
		if listed.HasFlags() {
			fmt.Fprintf(b, "\n%s:\n%s\n", title, strings.TrimRight(listed.FlagUsages(), " \n"))
		}
	}
	none, global := pflag.NewFlagSet("", pflag.ContinueOnError), cmd.Root().PersistentFlags()
	if !cmd.HasParent() {
		list("Global flags", cmd.LocalFlags(), none)
		return left
	}
	list("Flags", cmd.LocalFlags(), none)
	list("Flags of all commands of "+cmd.Parent().CommandPath(), cmd.InheritedFlags(), global)
	return left
}

package promisor

import (
	"slices"
	"strings"
)

// options lists the options of a git command that this package knows. The daemon passes harmless options (the fields
// keep and keepValue) on to the git commands that it runs. All other options are left out, because their effect is not
// known.
type options struct {
	keep      []string // passed on; an option alone, with "=value", or with the value attached
	keepValue []string // passed on; if no value is attached, the next argument is the value
	dropValue []string // left out; if no value is attached, the next argument is the value
}

// arguments are the arguments of a git command, separated by kind.
type arguments struct {
	flags []string // harmless options, which are passed on to other git commands
	all   []string // all options as the user passed them, including the options that are left out of flags
	plain []string // arguments that are not options
	paths []string // arguments after "--"
	split bool     // true if the arguments contain "--"
}

// parse separates the arguments of a git command by kind. args are the arguments after the name of the command.
func (o options) parse(args []string) arguments {
	var a arguments
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, _, attached := strings.Cut(arg, "=")
		switch {
		case arg == "--":
			a.split = true
			// git interprets all arguments after "--" as paths.
			a.paths = args[i+1:]
			return a
		case arg == "--end-of-options":
			continue
		case len(arg) < 2 || arg[0] != '-':
			a.plain = append(a.plain, arg)
			continue
		// "-20" is short for "-n 20".
		case isCount(arg) && slices.Contains(o.keepValue, "-n"):
			a.flags = append(a.flags, arg)
		case slices.Contains(o.keepValue, name):
			if !attached && i+1 < len(args) {
				i++
				arg += valueGlue(name) + args[i]
			}
			a.flags = append(a.flags, arg)
		case slices.Contains(o.keep, name):
			a.flags = append(a.flags, arg)
		// A value may be attached to an option of one letter, as in -n20.
		case len(arg) > 2 && arg[1] != '-' && slices.Contains(o.keepValue, arg[:2]):
			a.flags = append(a.flags, arg)
		// If an option is left out, its value is also left out, because it would be mistaken for a revision or a path.
		case !attached && slices.Contains(o.dropValue, name) && i+1 < len(args):
			i++
			arg += valueGlue(name) + args[i]
		}
		a.all = append(a.all, arg)
	}
	return a
}

// valueGlue returns the string that joins the option called name and its value into one argument: "=" for a long
// option, and nothing for an option of one letter.
func valueGlue(name string) string {
	if strings.HasPrefix(name, "--") {
		return "="
	}
	return ""
}

// isCount reports whether arg is a number with a dash, such as "-20".
func isCount(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && strings.Trim(arg[1:], "0123456789") == ""
}

// has reports whether the arguments contain an option in names, either alone or with a value.
func (a arguments) has(names ...string) bool {
	_, ok := a.value(names...)
	return ok
}

// value returns the value of the last option in the arguments that is in names. It returns false if the arguments
// contain no such option.
func (a arguments) value(names ...string) (value string, ok bool) {
	// If an option is given several times, git uses the last value.
	for _, arg := range slices.Backward(a.all) {
		for _, name := range names {
			if arg == name {
				return "", true
			}
			if v, found := strings.CutPrefix(arg, name); found && (strings.HasPrefix(v, "=") || len(name) == 2) {
				return strings.TrimPrefix(v, "="), true
			}
		}
	}
	return "", false
}

package promisor

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// options lists the options of a command that are understood. Only these are passed to git commands
// of the daemon; all others, which may do anything, are left out.
type options struct {
	keep      []string // alone, or with "=value" or the value attached
	keepValue []string // with the next argument as value, if none is attached
	dropValue []string // not kept, but the next argument is their value
}

// arguments are those of a git command, sorted.
type arguments struct {
	flags []string // harmless, to be passed on
	all   []string // all options as given, including those left out
	plain []string // the arguments that are no options
	paths []string // behind "--"
	split bool     // there was a "--"
}

// parse sorts the arguments of a git command. args are without the command's name.
func (o options) parse(args []string) arguments {
	var a arguments
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, _, attached := strings.Cut(arg, "=")
		switch {
		case arg == "--":
			a.split = true
			// git takes all arguments after "--" as paths.
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
		// A value may be attached to an option of one letter: -n20.
		case len(arg) > 2 && arg[1] != '-' && slices.Contains(o.keepValue, arg[:2]):
			a.flags = append(a.flags, arg)
		// The value of an option that is left out must not be taken for a revision or a path.
		case !attached && slices.Contains(o.dropValue, name) && i+1 < len(args):
			i++
			arg += valueGlue(name) + args[i]
		}
		a.all = append(a.all, arg)
	}
	return a
}

// valueGlue joins an option and its value to one argument. An option of one letter has its value
// attached, a long one after "=".
func valueGlue(name string) string {
	if strings.HasPrefix(name, "--") {
		return "="
	}
	return ""
}

// isCount knows "-20".
func isCount(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && strings.Trim(arg[1:], "0123456789") == ""
}

// has reports whether one of the options is there, alone, with "=value", or, for one letter, with
// the value attached.
func (a arguments) has(names ...string) bool {
	_, ok := a.value(names...)
	return ok
}

// value returns the value of the last of the options that is there.
func (a arguments) value(names ...string) (value string, ok bool) {
	// git uses the last of several options.
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

// resolve splits the arguments that are no options into revisions and paths, as git does: revisions
// are first, and without "--" the first word that is no revision begins the paths. It returns ids,
// with ^ before those to exclude.
func (q *question) resolve(a arguments) (revs, paths []string) {
	paths = a.paths
	for i, word := range a.plain {
		ids := q.expand(word)
		// A word that names no revision starts the paths, unless "--" does.
		if len(ids) == 0 && !a.split {
			paths = a.plain[i:]
			break
		}
		revs = append(revs, ids...)
	}
	return revs, q.topPaths(paths)
}

// expand returns the ids that a revision or range names.
func (q *question) expand(word string) []string {
	// An argument that starts with a dash would be an option of rev-parse.
	if word == "" || word[0] == '-' {
		return nil
	}
	out, err := q.quarantine.output(q.ctx, "rev-parse", "--revs-only", "--end-of-options", word)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(out), func(s string) bool { return s[0] == '-' })
}

// topPaths converts pathspecs to ones relative to the top directory. If it cannot convert one it
// returns none, which means all paths.
func (q *question) topPaths(paths []string) []string {
	var tops []string
	for _, p := range paths {
		// ":/" is the top directory. Other pathspecs with magic are passed on if the command was
		// started at the top.
		if rest, ok := strings.CutPrefix(p, ":/"); ok {
			p = rest
		} else if strings.HasPrefix(p, ":") {
			if q.command.Prefix == "" {
				tops = append(tops, p)
				continue
			}
			return nil
		} else if filepath.IsAbs(p) {
			rel, err := filepath.Rel(q.command.Dir, p)
			if err != nil {
				return nil
			}
			p = rel
		} else {
			slash := strings.HasSuffix(p, "/")
			if p = path.Join(q.command.Prefix, p); slash {
				p += "/"
			}
		}
		// A path outside of the working tree, or the whole of it, restricts nothing.
		if p == "" || p == "." || strings.HasPrefix(p, "..") {
			return nil
		}
		tops = append(tops, p)
	}
	return tops
}

// alias resolves a name that the user has configured for a command with arguments.
func (q *question) alias(name string, args []string) (string, []string) {
	// Such a name cannot be a key of the configuration.
	if name == "" || strings.ContainsAny(name, "\n\x00.") {
		return name, args
	}
	value, err := q.quarantine.userConfig(q.ctx, "alias."+name)
	words := strings.Fields(value)
	// An alias that starts with "!" is a command of the shell.
	if err != nil || len(words) == 0 || strings.HasPrefix(value, "!") {
		return name, args
	}
	return Subcommand(append(append([]string{"git"}, words...), args...))
}

package readahead

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Searched calls Search for the process that makes the request ctx (proc.CallerKey). ok is false if the process is not
// known.
func Searched(ctx context.Context, path string) (scope string, ok bool) {
	id, known := ctx.Value(proc.CallerKey{}).(int)
	if !known || id <= 0 {
		return "", false
	}
	caller := proc.Of(id)
	args, err := caller.Args()
	if err != nil {
		return "", false
	}
	dir, err := caller.Dir()
	if err != nil {
		return "", false
	}
	return Search(args, dir, path)
}

// Searches reports whether the process that makes the request ctx is a program that reads all files below directories
// (ok), and whether the directory at path ("" is the root) is one of these (target).
func Searches(ctx context.Context, path string) (target, ok bool) {
	scope, ok := Searched(ctx, strings.TrimPrefix(path+"/*", "/"))
	return ok && scope == path, ok
}

// Search returns the directory of the tree that a program with these arguments will read completely. ok is false if it
// is not a program that searches all files below some directories (rg, grep -r). args begins with the program, dir is
// its working directory as an absolute path, and path is the file or directory that it reads now. Because the path of
// the mount is not known, the result is the lowest directory above path whose path is the end of the path of a searched
// directory, or the root of the tree ("") if there is none.
func Search(args []string, dir, path string) (scope string, ok bool) {
	if len(args) == 0 {
		return "", false
	}
	var targets []string
	switch filepath.Base(args[0]) {
	case "rg":
		targets, ok = rgSyntax.searched(args[1:])
	case "grep", "egrep", "fgrep":
		targets, ok = grepSyntax.searched(args[1:])
	}
	if !ok {
		return "", false
	}
	if len(targets) == 0 {
		targets = []string{"."}
	}
	for _, t := range targets {
		if !filepath.IsAbs(t) {
			t = filepath.Join(dir, t)
		}
		t = filepath.Clean(t)
		if strings.HasSuffix(t, "/"+path) {
			return "", false // only this file is searched, and no directory
		}
		for above := path; ; {
			i := strings.LastIndexByte(above, '/')
			if i < 0 {
				break
			}
			if above = above[:i]; len(above) > len(scope) && strings.HasSuffix(t, "/"+above) {
				scope = above
			}
		}
	}
	return scope, true
}

// syntax lists the options of a search program that determine which files it reads.
type syntax struct {
	recursive options // options with which the program searches directories; empty if it always does
	selects   options // options with which the program skips most files, or stops early
	// options whose value is a pattern of paths: the program skips most files, unless the pattern begins with "!"
	globs    options
	patterns options // options whose value is the text to search for, or a file with such texts
	values   options // other options with a value, which may be the next argument
}

var (
	rgSyntax = syntax{
		selects:  options{"dtq", []string{"type", "max-depth", "maxdepth", "quiet", "max-filesize", "files", "pre"}},
		globs:    options{"g", []string{"glob", "iglob"}},
		patterns: options{"ef", []string{"regexp", "file"}},
		values: options{"ABCEjMmrT", []string{"after-context", "before-context", "context", "context-separator",
			"dfa-size-limit",
			"encoding", "engine", "field-context-separator", "field-match-separator", "ignore-file", "max-columns", "max-count",
			"threads", "color", "colors", "path-separator", "pre-glob", "regex-size-limit", "replace", "sort",
			"sortr", "type-add",
			"type-clear", "type-not", "hostname-bin", "hyperlink-format", "generate"}},
	}
	grepSyntax = syntax{
		recursive: options{"rR", []string{"recursive", "dereference-recursive"}},
		selects:   options{"q", []string{"include", "quiet", "silent"}},
		patterns:  options{"ef", []string{"regexp", "file"}},
		values: options{"ABCdDm", []string{"after-context", "before-context", "context", "directories", "devices", "exclude",
			"exclude-dir", "exclude-from", "binary-files", "label", "max-count", "group-separator"}},
	}
)

// options is a set of options, which have one letter or a long name.
type options struct {
	letters string
	names   []string
}

// has reports whether the set contains an option, a letter or a long name.
func (o options) has(option string) bool {
	return len(option) == 1 && strings.Contains(o.letters, option) || slices.Contains(o.names, option)
}

// searched returns the files and directories in the arguments of a search program. ok is false if the program does not
// read nearly all files below a directory.
func (s syntax) searched(args []string) (targets []string, ok bool) {
	ok = len(s.recursive.names) == 0
	pattern, selects := false, false
	// note evaluates an option and its value, which is the rest of the argument or the next argument.
	note := func(option, value string) {
		ok = ok || s.recursive.has(option)
		selects = selects || s.selects.has(option) || s.globs.has(option) && !strings.HasPrefix(value, "!")
		pattern = pattern || s.patterns.has(option)
	}
	valued := func(option string) bool { return s.globs.has(option) || s.patterns.has(option) || s.values.has(option) }
	var rest []string
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		next := func() (value string) {
			if len(args) > 0 {
				value, args = args[0], args[1:]
			}
			return value
		}
		switch {
		case a == "--":
			rest, args = append(rest, args...), nil
		case strings.HasPrefix(a, "--"):
			name, value, joined := strings.Cut(a[2:], "=")
			if !joined && valued(name) {
				value = next()
			}
			note(name, value)
		case len(a) > 1 && a[0] == '-':
			for a = a[1:]; a != ""; {
				letter, value := a[:1], ""
				if a = a[1:]; valued(letter) {
					if value, a = a, ""; value == "" {
						value = next()
					}
					value = strings.TrimPrefix(value, "=")
				}
				note(letter, value)
			}
		default:
			rest = append(rest, a)
		}
	}
	if !pattern && len(rest) > 0 {
		rest = rest[1:] // without one of the options in patterns, the first argument is the text to search for
	}
	return rest, ok && !selects
}

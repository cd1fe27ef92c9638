package readahead

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Searched calls Search for the process that makes the request ctx (proc.CallerKey). ok is false if the process is not known.
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

// Searches reports whether the process that makes the request ctx is a program that reads all files below directories (ok), and whether
// the directory at path ("" is the root) is one of these (target).
func Searches(ctx context.Context, path string) (target, ok bool) {
	scope, ok := Searched(ctx, strings.TrimPrefix(path+"/*", "/"))
	return ok && scope == path, ok
}

// Search returns the directory of the tree that a program with these arguments will read completely, if it is a program that searches all
// files below some directories (rg, grep -r) and reads path now. args begins with the program, and dir is its working directory, an
// absolute path. The path of the mount need not be known: the directory is the lowest one above path with whose path one of the searched
// directories ends, and the root of the tree ("") if there is none.
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

// syntax is the set of options of a search program that matter here.
type syntax struct {
	recursive options // with which it searches directories, if it does not always
	selects   options // with which it skips most files, or stops early
	globs     options // whose value is a pattern of paths: the program skips most files, unless the pattern begins with "!"
	patterns  options // whose value is what it searches for, or a file with that
	values    options // other options with a value, which may be the next argument
}

var (
	rgSyntax = syntax{
		selects:  options{"dtq", []string{"type", "max-depth", "maxdepth", "quiet", "max-filesize", "files", "pre"}},
		globs:    options{"g", []string{"glob", "iglob"}},
		patterns: options{"ef", []string{"regexp", "file"}},
		values: options{"ABCEjMmrT", []string{"after-context", "before-context", "context", "context-separator", "dfa-size-limit",
			"encoding", "engine", "field-context-separator", "field-match-separator", "ignore-file", "max-columns", "max-count",
			"threads", "color", "colors", "path-separator", "pre-glob", "regex-size-limit", "replace", "sort", "sortr", "type-add",
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

// options is a set of options: letters and long names.
type options struct {
	letters string
	names   []string
}

// has reports whether the set contains an option, a letter or a long name.
func (o options) has(option string) bool {
	return len(option) == 1 && strings.Contains(o.letters, option) || slices.Contains(o.names, option)
}

// searched returns the files and directories in the arguments of a search program. ok is false if the program does not read nearly all
// files below a directory.
func (s syntax) searched(args []string) (targets []string, ok bool) {
	ok = len(s.recursive.names) == 0
	pattern, selects := false, false
	// note takes account of an option, and of its value, which is the rest of the argument or the next one.
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
		rest = rest[1:] // the first argument is the pattern
	}
	return rest, ok && !selects
}

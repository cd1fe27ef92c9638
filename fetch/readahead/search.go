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
		targets, ok = searched(args[1:], false, rgSelects, rgValues)
	case "grep", "egrep", "fgrep":
		targets, ok = searched(args[1:], true, grepSelects, grepValues)
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
			return "", false // the file itself is searched
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

var (
	// Options with which a program skips files, or stops early. A letter stands for a short option.
	rgSelects   = options{"gtTdqm", []string{"glob", "iglob", "type", "type-not", "max-depth", "quiet", "max-filesize", "files", "pre"}}
	grepSelects = options{"qm", []string{"include", "quiet", "silent", "max-count"}}
	// Options with a value that may be the next argument, except those above.
	rgValues = options{"efABCEjMr", []string{"regexp", "file", "after-context", "before-context", "context", "encoding", "threads", "color",
		"colors", "replace", "sort"}}
	grepValues = options{"efABCdD", []string{"regexp", "file", "after-context", "before-context", "context", "exclude", "exclude-dir",
		"exclude-from"}}
)

// options is a set of options: letters and long names.
type options struct {
	letters string
	names   []string
}

// searched returns the files and directories in the arguments of a search program. ok is false if the program does not read all files
// below a directory. If recursive is true, it does only with the option -r or -R.
func searched(args []string, recursive bool, selects, values options) (targets []string, ok bool) {
	ok, pattern := !recursive, false
	var rest []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			rest, i = append(rest, args[i+1:]...), len(args)
		case strings.HasPrefix(a, "--"):
			name, _, valued := strings.Cut(a[2:], "=")
			if slices.Contains(selects.names, name) {
				return nil, false
			}
			ok = ok || name == "recursive" || name == "dereference-recursive"
			pattern = pattern || name == "regexp" || name == "file"
			if !valued && slices.Contains(values.names, name) {
				i++
			}
		case len(a) > 1 && a[0] == '-':
			for j, c := range a[1:] {
				if strings.ContainsRune(selects.letters, c) {
					return nil, false
				}
				ok = ok || c == 'r' || c == 'R'
				if strings.ContainsRune(values.letters, c) {
					pattern = pattern || c == 'e' || c == 'f'
					if j == len(a)-2 {
						i++ // the value is the next argument
					}
					break
				}
			}
		default:
			rest = append(rest, a)
		}
	}
	if !pattern && len(rest) > 0 {
		rest = rest[1:] // the first argument is the pattern
	}
	return rest, ok
}

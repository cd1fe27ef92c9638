package cli

import (
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
)

// PathsIn converts paths, which are absolute or relative to the directory in the parameter from, to paths relative to
// the mount. An empty list selects the whole mount. A path outside of the mount is an error of the command verb, with
// exit code 2.
func PathsIn(verb, mount, from string, paths []string) ([]string, error) {
	inMount := []string{}
	for _, p := range paths {
		full := p
		if !filepath.IsAbs(p) {
			full = filepath.Join(from, p)
		}
		rel, found := "", false
		for _, spelling := range Spellings(full) {
			if r, err := filepath.Rel(mount, spelling); err == nil && filepath.IsLocal(r) {
				rel, found = r, true
				break
			}
		}
		// The path of the directory contains symbolic links.
		if real, err := filepath.EvalSymlinks(from); err == nil && !found && !filepath.IsAbs(p) {
			if real, err = filepath.Abs(real); err == nil {
				r, err := filepath.Rel(mount, filepath.Join(real, p))
				rel, found = r, err == nil && filepath.IsLocal(r)
			}
		}
		if !found {
			return nil, &control.Error{Code: control.ExitUsage, Verb: verb, Object: p,
				Cause: "path is not in the mount at " + mount,
				Hint:  "type PATHs relative to the current directory, or to the one of -C"}
		}
		if rel == "." {
			return []string{}, nil // an empty list selects the whole mount
		}
		inMount = append(inMount, rel)
	}
	return inMount, nil
}

// DirectoryFlag returns the absolute path of the directory that a flag of the command verb names; "" if path is "". It
// is a usage error if there is no such directory.
func DirectoryFlag(verb, flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	fail := func(cause string) error {
		return &control.Error{Code: control.ExitUsage, Verb: verb, Object: flag + " " + path, Cause: cause}
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fail(Reason(err))
	}
	info, err := os.Stat(abs)
	switch {
	case err != nil:
		return "", fail(Reason(err))
	case !info.IsDir():
		return "", fail("not a directory")
	}
	return abs, nil
}

package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Glob returns the paths of the files below the directory dir whose names match pattern (filepath.Match), sorted by
// name. If pattern has a slash, the part before it selects directories. A directory that does not exist has no files.
//
// Unlike filepath.Glob, it returns the error if a directory cannot be read, for example because the process has too
// many open files: what cannot be read must not be taken for missing. No character of dir has a special meaning.
func Glob(dir, pattern string) (paths []string, err error) {
	pattern, rest, deeper := strings.Cut(pattern, "/")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		matches, err := filepath.Match(pattern, e.Name())
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, e.Name())
		switch {
		case !matches:
		case deeper:
			below, err := Glob(path, rest)
			if err != nil {
				return nil, err
			}
			paths = append(paths, below...)
		default:
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// QuoteGlob returns text in which the characters that have a meaning for filepath.Match are escaped.
func QuoteGlob(text string) string { return globQuotes.Replace(text) }

var globQuotes = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

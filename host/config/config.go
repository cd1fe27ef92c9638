// Package config reads the settings of users and repositories: files in TOML.
//
// A user's file is $XDG_CONFIG_HOME/artifactfs/config.toml (~/.config/artifactfs/config.toml); a repository's file is
// .artifactfs.toml in the root of the tree. Both files may contain:
//
//	redirect = ["node_modules", "target"]    # paths, relative to the root, that are stored outside of the mount
//
// The user's file may also contain:
//
//	store_from = "/host"    # state directory of another daemon, from which mounts read what it has fetched
//	agent_memory = true     # keep the conversations of coding agents in the session
//
// A repository is not trusted: its file is limited in size, and it can name only paths inside of the mount.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

const (
	// Name is the path of a repository's configuration file, relative to the root of the tree.
	Name = ".artifactfs.toml"

	// maxFile is the maximum size of a configuration file in bytes. The memory that the TOML parser allocates grows
	// with the third power of the nesting depth of tables: parsing a file of 64 KiB took a minute and allocated 31 GB
	// in total, and parsing a file of 4 KiB takes 0.1 s and allocates 0.2 GB.
	maxFile      = 4 << 10
	maxRedirects = 64   // maximum number of redirects, because each becomes a mount
	maxPath      = 1024 // maximum length of a path in bytes
)

// File is the contents of a configuration file.
type File struct {
	Redirect []string `toml:"redirect"` // paths in the form that Paths returns
	// StoreFrom is the absolute path of the state directory of another daemon, from which mounts read what it has
	// fetched; "" if there is none. Only the user's file may set it.
	StoreFrom string `toml:"store_from"`
	// AgentMemory is whether mounts keep the memory of coding agents in their sessions. Only the user's file may set it.
	AgentMemory bool `toml:"agent_memory"`
}

// Parse parses the contents of a configuration file. If the syntax is invalid, the error is one line that contains the
// line number.
func Parse(text []byte) (File, error) {
	var f File
	if len(text) > maxFile {
		return f, fmt.Errorf("configuration file has %d bytes, limit is %d", len(text), maxFile)
	}
	meta, err := toml.Decode(string(text), &f)
	var bad toml.ParseError
	switch {
	case errors.As(err, &bad):
		return File{}, fmt.Errorf("line %d: %.200s", bad.Position.Line, bad.Message)
	case err != nil:
		return File{}, fmt.Errorf("%.200s", err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return File{}, fmt.Errorf("unknown key %.60q", unknown[0].String())
	}
	if f.StoreFrom != "" && !filepath.IsAbs(f.StoreFrom) {
		return File{}, fmt.Errorf("setting store_from: path %.60q is not absolute", f.StoreFrom)
	}
	if f.Redirect, err = Paths(f.Redirect); err != nil {
		return File{}, fmt.Errorf("setting redirect: %w", err)
	}
	return f, nil
}

// Paths returns the clean forms (see Path) of the paths in raw, in the same order and without repetitions. It returns
// an error if one path is inside another.
func Paths(raw []string) ([]string, error) {
	var clean []string
	for _, r := range raw {
		p, err := Path(r)
		if err != nil {
			return nil, err
		}
		if slices.Contains(clean, p) {
			continue
		}
		for _, other := range clean {
			if strings.HasPrefix(p, other+"/") || strings.HasPrefix(other, p+"/") {
				return nil, fmt.Errorf("redirects %q and %q: one is inside the other", other, p)
			}
		}
		if clean = append(clean, p); len(clean) > maxRedirects {
			return nil, fmt.Errorf("more than %d redirects", maxRedirects)
		}
	}
	return clean, nil
}

// Path returns the clean form of a path relative to the root of a mount. It returns an error if the path leads outside
// of the mount, is the root itself, or has a component ".git".
func Path(raw string) (string, error) {
	p := path.Clean(raw)
	switch {
	case raw == "":
		return "", errors.New("path is empty")
	case len(raw) > maxPath || !utf8.ValidString(raw) ||
		strings.ContainsFunc(raw, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", fmt.Errorf("invalid path %.40q", raw)
	case path.IsAbs(raw):
		return "", fmt.Errorf("path %q is absolute, want one relative to the root of the mount", raw)
	case p == "." || !filepath.IsLocal(p):
		return "", fmt.Errorf("path %q is not inside the mount", raw)
	}
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case len(name) > 255:
			return "", fmt.Errorf("file name %.40q is longer than 255 bytes", name)
		case strings.EqualFold(name, ".git"):
			return "", fmt.Errorf("path %q is reserved for git", raw)
		}
	}
	return p, nil
}

// UserFile returns the path of the user's configuration file, or "" if the home directory is not known.
func UserFile() string {
	// The XDG base directory specification requires that a relative path in this variable is ignored.
	if x := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, "artifactfs", "config.toml")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".config", "artifactfs", "config.toml")
}

// Read returns the parsed contents of the configuration file name. If the file does not exist, Read returns the zero
// File and no error.
func Read(name string) (File, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return File{}, fmt.Errorf("read configuration: %w", err)
	}
	parsed, err := Parse(text)
	if err != nil {
		return File{}, fmt.Errorf("read configuration %s: %w", name, err)
	}
	return parsed, nil
}

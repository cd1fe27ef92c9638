// Package bare maintains the bare git repository in which a store keeps its commits, trees and refs.
//
// A store's directory contains the repository (in the subdirectory git) and the file boundary, which lists the commits
// whose parents were not fetched. Stock git reads the repository. Stock git also fetches into the repository, if
// package transport does not support the remote, or if a complete history has to be updated. A Repo creates the
// repository, maintains its files other than objects, and runs git in it. Package odb reads and writes the objects.
//
// Several processes may use one repository. A process that changes the boundary holds a file lock, and a process that
// fetches history or writes refs holds the lock of Repo.LockHistory.
package bare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Config configures a Repo.
type Config struct {
	Dir        string                // the store's directory
	URL        string                // URL of the remote, without secrets
	Credential func() Credential     // login for stock git when it contacts the remote; nil: no login
	Env        transport.Environment // environment of stock git when it contacts the remote
}

// Repo is the bare git repository of one store. All of its state is in files, and its methods may be called from any
// goroutine. The repository does not exist until Prepare was called; until then, the methods that read from it return
// empty results.
type Repo struct {
	dir        string // the store's directory
	url        string
	credential func() Credential // login for stock git; nil: no login
	env        transport.Environment
}

// New returns a Repo for the store's directory c.Dir. It neither reads nor writes files.
func New(c Config) *Repo {
	return &Repo{dir: c.Dir, url: c.URL, credential: c.Credential, env: c.Env}
}

// Path returns the path of the repository.
func (r *Repo) Path() string { return filepath.Join(r.dir, "git") }

// Objects returns the path of the repository's object directory.
func (r *Repo) Objects() string { return filepath.Join(r.Path(), "objects") }

// Format returns the object format of the repository, and false if the repository does not exist.
func (r *Repo) Format() (object.Format, bool) { return formatOf(r.Path()) }

// Prepare creates the repository if it does not exist. If it exists, Prepare returns an error if its object format is
// not f. partial is true if the remote can supply missing objects on demand.
func (r *Repo) Prepare(ctx context.Context, f object.Format, partial bool) error {
	if have, ok := r.Format(); ok {
		if have != f {
			return fmt.Errorf("open store: its object format is %s, but that of the remote is %s", have, f)
		}
		if err := r.markPartial(partial); err != nil {
			return fmt.Errorf("open store: %w", err)
		}
		return nil
	}
	if err := r.create(ctx, f, partial); err != nil {
		return fmt.Errorf("create store: %w", err)
	}
	return nil
}

// Partial reports whether the remote can supply missing objects on demand, according to the last call of Prepare.
func (r *Repo) Partial() bool {
	config, err := os.ReadFile(filepath.Join(r.Path(), "config"))
	return err == nil && strings.Contains(string(config), partialConfig)
}

// create runs git init in a temporary directory and then renames the directory, because two processes may create the
// repository at the same time.
func (r *Repo) create(ctx context.Context, f object.Format, partial bool) error {
	tmp, err := os.MkdirTemp(r.dir, "git-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// With an empty template, git does not copy the hooks and exclude files that are configured as a template on this
	// host.
	if _, err := Run(ctx, tmp, "init", "-q", "--bare", "--template=", "--object-format="+f.String(), "."); err != nil {
		return err
	}
	config, err := os.OpenFile(filepath.Join(tmp, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(config, storeConfig, gitcmd.Quote(r.url))
	if err == nil && partial {
		_, err = config.WriteString(partialConfig)
	}
	if err = errors.Join(err, config.Close()); err != nil {
		return err
	}
	err = os.Rename(tmp, r.Path())
	// Another process has created an equivalent repository in the meantime, so the new repository in the temporary
	// directory is dropped.
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// markPartial adds partialConfig to the repository's configuration, or removes it if partial is false.
func (r *Repo) markPartial(partial bool) error {
	path := filepath.Join(r.Path(), "config")
	config, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(config), partialConfig) == partial {
		return err
	}
	changed := strings.ReplaceAll(string(config), partialConfig, "")
	if partial {
		changed += partialConfig
	}
	return disk.WriteFile(path, []byte(changed), 0o644)
}

// storeConfig is the configuration of a new repository. It names the remote and turns git's automatic maintenance off.
const storeConfig = `[remote "origin"]
	url = %s
	fetch = +refs/heads/*:refs/heads/*
[gc]
	auto = 0
[maintenance]
	auto = false
[fetch]
	unpackLimit = 1
`

// partialConfig marks the repository as a partial clone, so that git's own commands expect blobs to be missing. It must
// not be set for remotes from which stock git fetches. With the protocols of plain file servers, git would start
// another git process for every missing object, and this process would start the next one, without end.
const partialConfig = `[remote "origin"]
	promisor = true
	partialclonefilter = blob:none
`

// formatOf returns the object format of a git directory, and false if the git directory does not exist.
func formatOf(gitDir string) (object.Format, bool) {
	if _, err := os.Stat(filepath.Join(gitDir, "HEAD")); err != nil {
		return 0, false
	}
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err != nil {
		return 0, false
	}
	// In a SHA-1 repository, extensions.objectFormat is missing or names sha1.
	if strings.Contains(strings.ToLower(string(config)), "objectformat = sha256") {
		return object.SHA256, true
	}
	return object.SHA1, true
}

// Info describes the repository of a store without opening it.
type Info struct {
	URL     string // URL of the store's remote, without secrets; "" if it cannot be read
	Format  object.Format
	Objects string // path of the store's object directory
	Sizes   string // path of the file with the table of sizes
}

// Peek reads the description of the store in the directory dir. It returns false if dir contains no store.
func Peek(dir string) (Info, bool) {
	r := New(Config{Dir: dir})
	f, ok := r.Format()
	if !ok {
		return Info{}, false
	}
	info := Info{Format: f, Objects: r.Objects(), Sizes: filepath.Join(dir, "sizes")}
	config, err := os.ReadFile(filepath.Join(r.Path(), "config"))
	if err != nil {
		return info, true
	}
	// the method create has written the URL in one line of the configuration
	for line := range strings.Lines(string(config)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "url = "); ok {
			info.URL = unquoteConfig(value)
			break
		}
	}
	return info, true
}

// unquoteConfig is the inverse of gitcmd.Quote.
func unquoteConfig(value string) string {
	value = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(value)
}

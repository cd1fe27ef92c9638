// Package bare keeps the bare git repository in which a store has its commits, trees and refs.
//
// A store's directory contains the repository itself (the directory git) and the file boundary, which lists the commits whose
// parents were not fetched. Stock git reads the repository, and also fetches into it if package transport cannot speak to the
// remote or a complete history has to be updated. Repo creates the repository, maintains those of its files that are not
// objects, and runs git in it. Package odb reads and writes the objects.
//
// Several processes may use one repository: each change of the boundary holds a file lock, and Repo.LockHistory is held while
// history is fetched or refs are written.
package bare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// Config configures a Repo.
type Config struct {
	Dir        string                // the store's directory
	URL        string                // of the remote, without secrets
	Credential func() Credential     // for stock git when it contacts the remote; nil: none
	Env        transport.Environment // of stock git when it contacts the remote
}

// Repo is the bare git repository of one store. All of its state is in files, and its methods may be called from any goroutine.
// The repository does not exist before Prepare was called; until then the methods that read it return that there is nothing.
type Repo struct {
	dir        string // the store's directory
	url        string
	credential func() Credential // nil: none
	env        transport.Environment
}

// New returns the repository in the store's directory c.Dir. It neither reads nor writes anything.
func New(c Config) *Repo {
	return &Repo{dir: c.Dir, url: c.URL, credential: c.Credential, env: c.Env}
}

// Path returns the path of the repository.
func (r *Repo) Path() string { return filepath.Join(r.dir, "git") }

// Objects returns the path of the repository's object directory.
func (r *Repo) Objects() string { return filepath.Join(r.Path(), "objects") }

// Format returns the object format of the repository, and false if the repository does not exist.
func (r *Repo) Format() (object.Format, bool) { return formatOf(r.Path()) }

// Prepare creates the repository if it does not exist. It returns an error if the repository exists with another object format
// than f. partial is true if the remote can supply missing objects on demand.
func (r *Repo) Prepare(ctx context.Context, f object.Format, partial bool) error {
	if have, ok := r.Format(); ok {
		if have != f {
			return fmt.Errorf("open store: object format is %s, the remote's is %s", have, f)
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

// Partial reports whether the remote can supply missing objects on demand, as the last call of Prepare has recorded.
func (r *Repo) Partial() bool {
	config, err := os.ReadFile(filepath.Join(r.Path(), "config"))
	return err == nil && strings.Contains(string(config), partialConfig)
}

// create lets git create the repository in a temporary directory, which it then renames, because two processes may create the
// repository at the same time.
func (r *Repo) create(ctx context.Context, f object.Format, partial bool) error {
	tmp, err := os.MkdirTemp(r.dir, "git-*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	// The empty template keeps the hooks and exclude files of this host out of the store.
	if _, err := Run(ctx, tmp, "init", "-q", "--bare", "--template=", "--object-format="+f.String(), "."); err != nil {
		return err
	}
	config, err := os.OpenFile(filepath.Join(tmp, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(config, storeConfig, quoteConfig(r.url))
	if err == nil && partial {
		_, err = config.WriteString(partialConfig)
	}
	if err = errors.Join(err, config.Close()); err != nil {
		return err
	}
	err = os.Rename(tmp, r.Path())
	// If another process has created an equivalent repository since, that one is used.
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// markPartial sets or removes partialConfig in the store's configuration.
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

// storeConfig names the remote and turns git's automatic maintenance off.
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

// partialConfig marks the store as a partial clone, so that git's own commands know that blobs are
// missing on purpose. It must not be set where stock git fetches: over the protocols of plain file
// servers, git would request every missing object through another git that does the same, without
// end.
const partialConfig = `[remote "origin"]
	promisor = true
	partialclonefilter = blob:none
`

// quoteConfig returns value as a quoted string of git's configuration syntax.
func quoteConfig(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// formatOf returns the object format of a git directory, and false if there is none.
func formatOf(gitDir string) (object.Format, bool) {
	if _, err := os.Stat(filepath.Join(gitDir, "HEAD")); err != nil {
		return 0, false
	}
	config, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err != nil {
		return 0, false
	}
	// SHA-1 repositories have no extensions.objectFormat, or one that names sha1.
	if strings.Contains(strings.ToLower(string(config)), "objectformat = sha256") {
		return object.SHA256, true
	}
	return object.SHA1, true
}

// Peek returns the object format of the repository below a store's directory dir, and the URL of its remote, "" if the URL cannot
// be read. It returns false if there is no repository.
func Peek(dir string) (f object.Format, url string, ok bool) {
	git := filepath.Join(dir, "git")
	if f, ok = formatOf(git); !ok {
		return 0, "", false
	}
	config, err := os.ReadFile(filepath.Join(git, "config"))
	if err != nil {
		return f, "", true
	}
	for line := range strings.Lines(string(config)) { // create has written one line with the URL
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "url = "); ok {
			return f, unquoteConfig(value), true
		}
	}
	return f, "", true
}

// unquoteConfig is the inverse of quoteConfig.
func unquoteConfig(value string) string {
	value = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(value)
}

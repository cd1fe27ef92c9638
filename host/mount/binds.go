package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/host/config"
	"github.com/artifactfs/artifactfs/host/mount/bind"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/worktree"
)

// gitDirInside returns the bind mount that shows the git directory as ".git" in the root of the mount. It returns nil if ".git"
// is a file, which is the default.
func (m *Mount) gitDirInside() *bind.GitDir {
	if m.Request.GitDir != control.GitDirInside {
		return nil
	}
	return bind.NewGitDir(m.Dir, m.Request.UID, m.Request.GID, m.gitSources, m.host.Log.With(zap.String("mount", m.Dir)))
}

// guardGitDir protects the host from what programs in a container may have put into the git directory, also in an earlier mount of the
// session. It is called before the git directory is read.
func guardGitDir(m *Mount) error {
	if at := m.home.GitDir(); !m.inside.Wanted() && guard.Exists(at) {
		return guard.Mount(at)
	}
	return m.inside.Guard()
}

// gitSources returns the directories and programs that are bind-mounted below ".git". The caller must have set
// m.contents.Store, m.home.Record, and m.home (the mount's directory below the state directory).
func (m *Mount) gitSources() (bind.Sources, error) {
	program, err := os.Executable()
	if err != nil {
		return bind.Sources{}, fmt.Errorf("find own program: %w", err)
	}
	s := bind.Sources{
		Git: m.home.GitDir(), Objects: filepath.Join(m.contents.Store.GitDir(), "objects"), Program: program,
		Monitor: gitside.HookProgram(program),
	}
	if m.home.Record.Checkpoint != nil {
		s.Session = origin.SessionObjects(m.home.Dir)
	}
	return s, nil
}

// checkGitDir returns an error, with an exit code and a hint, if the request demands the git directory inside the mount but this
// mount does not support it. It is called before anything is created on disk.
func checkGitDir(r control.MountRequest, dir, session string) error {
	refuse := func(exit int, cause, hint string) error {
		return &control.Error{Code: exit, Verb: "mount", Object: dir, Cause: cause, Hint: hint}
	}
	switch {
	case r.GitDir != control.GitDirInside:
		return nil
	case r.ReadOnly && session != "":
		return refuse(control.ExitUsage, "--git-dir inside needs a mount that can be changed, or one without a session", "")
	case r.Through != "":
		return refuse(control.ExitUsage, "--git-dir inside does not go with an automount", "")
	case !mountpoint.MayBind():
		return refuse(control.ExitFailed, "--git-dir inside takes bind mounts, which only root may make",
			"as root of a user namespace it works: unshare --user --map-root-user --mount, and all that uses the mount in there")
	}
	return nil
}

// bindOptions returns the options for package bind. The caller must have set m.home and m.tree.
func (m *Mount) bindOptions() bind.Options {
	return bind.Options{
		Dir: m.Dir, Home: m.home.Dir, ID: m.ID, Tree: m.tree, Writable: m.Writable(),
		Owner: worktree.Cred{UID: m.Request.UID, GID: m.Request.GID}, Log: m.host.Log.With(zap.String("mount", m.Dir)),
	}
}

// planRedirects decides which paths are redirects (paths that are served from a plain directory elsewhere), according
// to the request and the configuration file in the repository. It stores the paths in m.home.Record; the caller writes
// the record to disk.
func (m *Mount) planRedirects(ctx context.Context) error {
	paths := m.Request.Redirects
	if !m.Request.RedirectsOnly {
		paths = append(slices.Clone(paths), m.configuredRedirects(ctx)...)
	}
	var err error
	m.home.Record.Redirects, err = m.redirects.Plan(ctx, m.bindOptions(), bind.Wish{
		Paths: paths, Strict: m.Request.RedirectsOnly, Old: m.home.Record.Redirects, Base: m.contents.View.Tree,
		Root: m.contents.Snapshot().Tree,
	})
	return err
}

// endRedirects removes the entries of redirects from the overlay, and the directories to which the redirects lead. It is called
// after the kernel has unmounted the file system.
func (m *Mount) endRedirects(ctx context.Context) {
	m.redirects.Remove(ctx)
	m.home.Record.Redirects = nil
}

// configuredRedirects returns the redirects that the configuration file in the repository lists. The file is read when the
// session is created, and the result is stored in the session's record. Later the record is used, because the base tree of a
// session never changes, and because a session can be resumed without a network, when the file may be missing on this host.
func (m *Mount) configuredRedirects(ctx context.Context) []string {
	if m.home.Resumed {
		return m.home.Record.Configured
	}
	file, err := readConfig(ctx, m.contents)
	if err != nil {
		m.redirects.Note("%s is ignored: %v", config.Name, err)
	}
	m.home.Record.Configured = file.Redirect
	return file.Redirect
}

// readConfig reads the file config.Name in the root of the base tree. It returns the zero File if the tree has no such
// file.
func readConfig(ctx context.Context, c *contents.Contents) (config.File, error) {
	// The limit protects against a very large file. config.Parse has a lower limit.
	text, err := c.RootFile(ctx, config.Name, 1<<20)
	if err != nil || text == nil {
		return config.File{}, err
	}
	file, err := config.Parse(text)
	if err == nil && file.StoreFrom != "" {
		return config.File{}, errors.New("only the user's file may contain the setting store_from")
	}
	return file, err
}

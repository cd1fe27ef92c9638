package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

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

// gitDirInside returns the bind mount that shows the git directory as ".git" in the root of the mount, or nil if ".git"
// is a file, which is the default.
func (a *Attachment) gitDirInside() *bind.GitDir {
	if a.of.Request.GitDir != control.GitDirInside {
		return nil
	}
	return bind.NewGitDir(a.of.Dir, a.of.Request.UID, a.of.Request.GID, a.gitSources, a.log())
}

// GuardGitDir protects the host from what programs in a container may have put into the git directory, also during an
// earlier mount of the session. It must be called before the git directory is read.
func (a *Attachment) GuardGitDir() error {
	if at := a.of.Home.GitDir(); !a.Inside.Wanted() && guard.Exists(at) {
		return guard.Mount(at)
	}
	return a.Inside.Guard()
}

// gitSources returns the directories and programs that are bind-mounted below ".git". The home must be locked, and the
// store open.
func (a *Attachment) gitSources() (bind.Sources, error) {
	program, err := os.Executable()
	if err != nil {
		return bind.Sources{}, fmt.Errorf("find own program: %w", err)
	}
	s := bind.Sources{
		Git: a.of.Home.GitDir(), Objects: filepath.Join(a.of.Contents.Store.GitDir(), "objects"), Program: program,
		Monitor: gitside.HookProgram(program),
	}
	if a.of.Home.Record.Checkpoint != nil {
		s.Session = origin.SessionObjects(a.of.Home.Dir)
	}
	return s, nil
}

// CheckGitDir returns an error, with an exit code and a hint, if the request demands the git directory inside the mount
// but this mount does not support that. It must be called before anything is created on disk.
func CheckGitDir(r control.MountRequest, dir, session string) error {
	refuse := func(exit int, cause, hint string) error {
		return &control.Error{Code: exit, Verb: "mount", Object: dir, Cause: cause, Hint: hint}
	}
	switch {
	case r.GitDir != control.GitDirInside:
		return nil
	case r.ReadOnly && session != "":
		return refuse(control.ExitUsage, "--git-dir inside needs a mount that can be changed, or one without a session", "")
	case r.Through != "":
		return refuse(control.ExitUsage, "--git-dir inside cannot be combined with an automount", "")
	case !mountpoint.MayBind():
		return refuse(control.ExitFailed, "--git-dir inside needs bind mounts, which only root may create",
			"run this command, and all programs that use the mount, in unshare --user --map-root-user --mount")
	}
	return nil
}

// bindOptions returns the options for package bind. The working tree must be open.
func (a *Attachment) bindOptions() bind.Options {
	return bind.Options{
		Dir: a.of.Dir, Home: a.of.Home.Dir, ID: a.of.ID, Tree: a.Tree, Writable: a.Writable(),
		Owner: worktree.Cred{UID: a.of.Request.UID, GID: a.of.Request.GID}, Log: a.log(),
	}
}

// PlanRedirects determines the redirects (paths that are served from a plain directory elsewhere), before programs can
// create their directories. If they have changed since the last mount, it saves the record.
func (a *Attachment) PlanRedirects(ctx context.Context) error {
	if !a.Writable() {
		return nil
	}
	record := &a.of.Home.Record
	before := len(record.Redirects) + len(record.Configured)
	if err := a.planRedirects(ctx); err != nil {
		return err
	}
	if !mountpoint.MayBind() {
		a.Redirects.Link(ctx)
	}
	if before+len(record.Redirects)+len(record.Configured) == 0 {
		return nil // the redirects are the same as in the record
	}
	return a.of.Home.Save()
}

// TakeOverRedirects continues the redirects that the predecessor has stored in the record.
func (a *Attachment) TakeOverRedirects() {
	a.Redirects.TakeOver(a.bindOptions(), a.of.Home.Record.Redirects)
}

// planRedirects determines the redirects (paths that are served from a plain directory elsewhere) from the request and
// from the configuration file in the repository. It stores them in the record, which the caller writes to disk.
func (a *Attachment) planRedirects(ctx context.Context) error {
	paths := a.of.Request.Redirects
	if !a.of.Request.RedirectsOnly {
		paths = append(slices.Clone(paths), a.configuredRedirects(ctx)...)
	}
	var err error
	a.of.Home.Record.Redirects, err = a.Redirects.Plan(ctx, a.bindOptions(), bind.Wish{
		Paths: paths, Strict: a.of.Request.RedirectsOnly, Old: a.of.Home.Record.Redirects,
		Base: a.of.Contents.View.Tree, Root: a.of.Contents.Snapshot().Tree,
	})
	return err
}

// EndRedirects removes the entries of redirects from the overlay, and the directories to which the redirects lead. It
// must be called after the kernel has unmounted the mount.
func (a *Attachment) EndRedirects(ctx context.Context) {
	a.Redirects.Remove(ctx)
	a.of.Home.Record.Redirects = nil
}

// configuredRedirects returns the redirects that the configuration file in the repository lists. The file is read when
// the session is created, and the result is stored in the session's record. Later the record is used, because the base
// tree of a session never changes, and because the file may be missing on this host when a session is resumed without a
// network.
func (a *Attachment) configuredRedirects(ctx context.Context) []string {
	if a.of.Home.Resumed {
		return a.of.Home.Record.Configured
	}
	file, err := readConfig(ctx, a.of.Contents)
	if err != nil {
		a.Redirects.Note("%s is ignored: %v", config.Name, err)
	}
	a.of.Home.Record.Configured = file.Redirect
	return file.Redirect
}

// readConfig returns the parsed configuration file (config.Name) in the root of the base tree, or the zero File if the
// tree has no such file.
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

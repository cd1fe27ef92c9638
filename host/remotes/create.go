package remotes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
)

// Creation creates the session remote of a mount if the repository does not exist. Only one goroutine may use it.
type Creation struct {
	Remotes *Remotes
	Store   *fetch.Store                // store of the mounted remote
	Request control.MountRequest        // original request of the mount
	Now     func() control.MountRequest // returns the request with the current credentials
	Format  string                      // object format in the session's record; "" if it is not known
}

// Run creates the session remote of the request if the repository does not exist. If the session remote is a path, Run
// creates a bare repository. If it is a URL, Run executes the command of --session-remote-create, if the request has
// one. A repository at a path in the record of the session is not created again, because it may be on a disk that is
// not mounted at the moment.
func (c *Creation) Run(ctx context.Context, progress func(control.Progress)) error {
	at, kind := SessionURL(c.Request)
	if kind == "" && !filepath.IsAbs(at) && len(c.Request.CreateRemote) > 0 && !c.Request.ReadOnly {
		return c.createByHook(ctx, progress)
	}
	if kind != "" || !filepath.IsAbs(at) || c.Request.ReadOnly {
		return nil
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		return nil // the error is reported when the session remote is opened
	}
	format, err := c.formatOfRemote(ctx)
	if err != nil {
		return fault.Remote(err)
	}
	if err := makeBare(ctx, at, format); err != nil {
		e := &control.Error{Code: control.ExitUsage, Verb: "create session remote", Object: at, Cause: err.Error()}
		if errors.Is(err, fs.ErrNotExist) {
			e.Cause, e.Hint = "directory "+filepath.Dir(at)+" does not exist", "run mkdir -p "+filepath.Dir(at)+" to create it"
		}
		return e
	}
	progress(control.Progress{Message: "created session remote " + at})
	return nil
}

// formatOfRemote returns the object format of the mounted remote, from the session's record or, if that does not
// contain the format, from the remote.
func (c *Creation) formatOfRemote(ctx context.Context) (object.Format, error) {
	if c.Format != "" {
		return object.ParseFormat(c.Format)
	}
	caps, err := c.Store.Remote().Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) { // a server without protocol version 2 has only SHA-1 repositories
		return object.SHA1, nil
	}
	return caps.Format, err
}

// makeBare creates a bare repository with mode 0700 at the path at. It creates the repository under a temporary name
// and renames it, so that a crash leaves no incomplete repository. If another process creates a repository at the same
// path first, makeBare keeps that.
func makeBare(ctx context.Context, at string, f object.Format) error {
	// MkdirTemp creates a directory with mode 0700
	temp, err := os.MkdirTemp(filepath.Dir(at), "."+filepath.Base(at)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	cmd := gitcmd.Isolated(ctx, "init", "--quiet", "--bare", "--template=", "--initial-branch=main",
		"--object-format="+f.String(), temp)
	cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1")
	if err := gitcmd.Run(cmd); err != nil {
		return err
	}
	// rename(2) can replace an empty directory, but fails if another process has created the repository since.
	err = os.Rename(temp, at)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

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
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// Creation creates the session remote of a mount if it does not exist. One goroutine uses it.
type Creation struct {
	Remotes *Remotes
	Store   *fetch.Store                // store of the mounted remote
	Request control.MountRequest        // original request of the mount
	Now     func() control.MountRequest // returns the request with the current credentials
	Format  string                      // object format in the record of the session; "": not known
}

// Run creates the session remote of the request if it is missing. A path that does not exist is created as a bare
// repository; for a URL, the command of --session-remote-create is run, if the request has one. A path that was read from the
// session's record is not created, because it may be on a disk that is not mounted at present.
func (c *Creation) Run(ctx context.Context, progress func(control.Progress)) error {
	at, kind := SessionURL(c.Request)
	if kind == "" && !filepath.IsAbs(at) && len(c.Request.CreateRemote) > 0 && !c.Request.ReadOnly {
		return c.createByHook(ctx, progress)
	}
	if kind != "" || !filepath.IsAbs(at) || c.Request.ReadOnly {
		return nil
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		return nil // opening it reports what is wrong with it
	}
	format, err := c.formatOfRemote(ctx)
	if err != nil {
		return fault.Remote(err)
	}
	if err := makeBare(ctx, at, format); err != nil {
		e := &control.Error{Code: control.ExitUsage, Verb: "create session remote", Object: at, Cause: err.Error()}
		if errors.Is(err, fs.ErrNotExist) {
			e.Cause, e.Hint = "the directory "+filepath.Dir(at)+" does not exist", "mkdir -p "+filepath.Dir(at)+" makes it"
		}
		return e
	}
	progress(control.Progress{Message: "created session remote " + at})
	return nil
}

// formatOfRemote returns the object format of the mounted remote. It sends a request to the remote if the session's record does
// not store the format.
func (c *Creation) formatOfRemote(ctx context.Context) (object.Format, error) {
	if c.Format != "" {
		return object.ParseFormat(c.Format)
	}
	caps, err := c.Store.Remote().Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) { // servers without protocol v2 only have SHA-1 repositories
		return object.SHA1, nil
	}
	return caps.Format, err
}

// makeBare creates a bare repository with mode 0700; the parameter at is its path. It creates the repository under a temporary
// name and renames it, so that a crash leaves no incomplete repository under the final name. If another process creates a
// repository at the same path at the same time, makeBare keeps that one.
func makeBare(ctx context.Context, at string, f object.Format) error {
	temp, err := os.MkdirTemp(filepath.Dir(at), "."+filepath.Base(at)+".*.tmp") // mode 0700
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	cmd := gitcmd.Isolated(ctx, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", "--object-format="+f.String(), temp)
	cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1")
	if err := gitcmd.Run(cmd); err != nil {
		return err
	}
	// rename(2) replaces an empty directory. It fails if another process has created the repository in the meantime.
	err = os.Rename(temp, at)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

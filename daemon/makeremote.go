package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// makeSessionRemote creates a bare repository if the session remote of the request is a path that does not exist. For a URL it
// runs the command of --session-remote-create, if the request has one. A path from the session's record is not created: it may
// be on a disk that is not mounted.
func (m *mount) makeSessionRemote(ctx context.Context, progress func(control.Progress)) error {
	at, kind := remotes.SessionURL(m.request)
	if kind == "" && !filepath.IsAbs(at) && len(m.request.CreateRemote) > 0 && !m.request.ReadOnly {
		return m.createByHook(ctx, progress)
	}
	if kind != "" || !filepath.IsAbs(at) || m.request.ReadOnly {
		return nil
	}
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		return nil // opening it reports what is wrong with it
	}
	format, err := m.formatOfRemote(ctx)
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

// formatOfRemote returns the object format of the mounted remote. It asks the remote unless the session's record has it.
func (m *mount) formatOfRemote(ctx context.Context) (object.Format, error) {
	if m.record.Format != "" {
		return object.ParseFormat(m.record.Format)
	}
	caps, err := m.store.Remote().Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) { // servers without protocol v2 only have SHA-1 repositories
		return object.SHA1, nil
	}
	return caps.Format, err
}

// makeBare creates a bare repository with mode 0700; at is its path. It creates the repository under a temporary name and
// renames it, so that a crash leaves no incomplete one under the final name. If another process creates one at the same moment,
// that one stays.
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
	// rename(2) replaces an empty directory, and fails if another process has created the repository meanwhile.
	err = os.Rename(temp, at)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

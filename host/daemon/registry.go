package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// restoresAtOnce is the maximum number of mounts that Remount restores at the same time.
const restoresAtOnce = 4

// pauses defines the time between two attempts to restore a registered mount that has failed.
var pauses = backoff.Backoff{First: 5 * time.Second, Longest: 5 * time.Minute}

// registryPath returns the path of the registry file of the mount at dir, in the directory registry/ of the state
// directory. Remount restores the mount from this file after a restart of the machine. The file has no credentials. It
// is removed when the mount is unmounted, and kept when the daemon exits.
func (d *Daemon) registryPath(dir string) string {
	return filepath.Join(d.host.State, "registry", statedir.FileName(dir))
}

// register writes the registry file of a mount, from which Remount restores it. Failures are only logged. No file is
// written for the mount of a submodule, which is restored with its parent, and if there is no supervisor, because then
// all mounts end with this process.
func (d *Daemon) register(m *mount.Mount) {
	r, ok := m.Registration()
	if !ok {
		return
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = os.MkdirAll(filepath.Join(d.host.State, "registry"), 0o700)
	}
	if err == nil {
		err = disk.WriteFile(d.registryPath(m.Dir), append(text, '\n'), 0o600)
	}
	if err != nil {
		d.host.Log.Warn("register mount", zap.String("dir", m.Dir), zap.Error(err))
	}
}

// Unregister removes the registry file of a mount. Failures are only logged.
func (d *Daemon) Unregister(m *mount.Mount) {
	if !m.HasRegistration() {
		return
	}
	if err := os.Remove(d.registryPath(m.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.host.Log.Warn("unregister mount", zap.String("dir", m.Dir), zap.Error(err))
	}
}

// Remount mounts again the mounts that have registry files. It returns nil after one attempt for each mount, or the
// error of ctx. Failed attempts are repeated in the background, until one succeeds, another mount uses the directory,
// the mount is unregistered, or the daemon exits.
func (d *Daemon) Remount(ctx context.Context) error {
	files, err := disk.Glob(filepath.Join(d.host.State, "registry"), "*.json")
	if err != nil {
		return fmt.Errorf("restore mounts: %w", err)
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, restoresAtOnce)
	for _, path := range files {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if d.remount(ctx, path) {
				return
			}
			d.behind.Go(func() {
				for failures := 1; pauses.Wait(d.ctx, failures) && !d.remount(d.ctx, path); failures++ {
				}
			})
		})
	}
	all.Wait()
	return ctx.Err()
}

// remount mounts again the mount whose registry file is path. It returns false if the mount failed and another attempt
// may succeed.
func (d *Daemon) remount(ctx context.Context, path string) bool {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true // the mount was unregistered, so nothing has to be restored
	}
	var r statedir.Registered
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	// A file that a later version has written may have other fields. The file is kept for a daemon of that version.
	if err == nil && (r.Version != statedir.RegistryVersion || !filepath.IsAbs(r.Request.Dir)) {
		err = fmt.Errorf("%w: version %d", statedir.ErrRecord, r.Version)
	}
	if err != nil {
		d.host.Log.Error("restore mount", zap.String("file", path), zap.Error(err))
		return true
	}
	if _, there := d.find(r.Request.Dir); there {
		return true
	}
	// Wait only until the files can be read, and not for git and the history.
	r.Request.Wait = control.WaitTree
	if r.Request.Session != "" {
		if _, err := os.Lstat(filepath.Join(d.host.Homes.Dir(), r.Request.Session)); err == nil {
			r.Request.Ref = "" // the session resumes at its own base commit, which takes no request to the remote
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	b := mount.StartPoint{Base: &r.Record, Head: r.Record.Fork.Head}
	_, _, err = d.mount(ctx, r.Request, b, func(control.Progress) {})
	if err == nil {
		return true
	}
	d.host.Log.Error("restore mount", zap.String("dir", r.Request.Dir), zap.Error(err))
	// The status shows the failure until the mount succeeds or is unmounted.
	d.host.Failures.Add(statedir.Failure{
		Dir: r.Request.Dir, ID: r.Request.Session, Remote: statedir.WithoutSecrets(r.Request.Remote),
		Session: r.Record.Session,
		Ref:     r.Record.Ref, Commit: r.Record.Commit, When: time.Now(), Cause: "mount was not restored: " + err.Error(),
	})
	return ctx.Err() != nil
}

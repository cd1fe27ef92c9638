package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/statedir"
)

// Mounts are registered below registry/, without secrets, so that Remount restores them after a restart of the machine. A mount is
// unregistered when it is unmounted, not when a daemon ends.

const (
	restoresAtOnce = 4
	restoreFirst   = 5 * time.Second // before what failed is tried again; it doubles
	restoreMost    = 5 * time.Minute
)

func (d *Daemon) registryPath(dir string) string {
	return filepath.Join(d.state, "registry", statedir.FileName(dir))
}

// register registers a mount. A submodule is restored with its parent; without a keeper mounts end with this process and are not
// restored.
func (d *Daemon) register(m *mount) {
	if d.keeper == nil || m.parent != nil || m.request.Passing {
		return
	}
	r := statedir.Registered{Version: statedir.RegistryVersion, Request: m.request, Record: m.record}
	r.Request.Remote, r.Request.Nonce, r.Request.Session = m.store.URL(), "", m.session
	r.Request.CreateRemote = nil
	r.Request.SessionOptions = shown(r.Request.SessionOptions)
	r.Record.Version = statedir.RecordVersion
	text, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = os.MkdirAll(filepath.Join(d.state, "registry"), 0o700)
	}
	if err == nil {
		err = disk.WriteFile(d.registryPath(m.dir), append(text, '\n'), 0o600)
	}
	if err != nil {
		d.log.Warn("register mount", zap.String("dir", m.dir), zap.Error(err))
	}
}

func (d *Daemon) unregister(m *mount) {
	if d.keeper == nil || m.parent != nil {
		return
	}
	if err := os.Remove(d.registryPath(m.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("unregister mount", zap.String("dir", m.dir), zap.Error(err))
	}
}

// unregisterUnmounted unregisters a mount that was unmounted without a request to this daemon, unless the system is shutting down.
func (m *mount) unregisterUnmounted() {
	m.daemon.mu.Lock()
	closed := m.daemon.closed
	m.daemon.mu.Unlock()
	m.mu.Lock()
	ours := m.stopping
	m.mu.Unlock()
	if closed || ours || m.daemon.keeper == nil || m.parent != nil || systemEnds() {
		return
	}
	m.daemon.unregister(m)
}

// systemEnds reports whether the service manager, which unmounts everything then, is shutting the system down.
func systemEnds() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), mountpoint.ProbeTime)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // its exit status is that of the system
	return strings.TrimSpace(string(out)) == "stopping"
}

// Remount restores registered mounts. It returns when each was tried once. Those that failed are tried again until they succeed,
// another mount or an unmount replaces them, or the daemon ends.
func (d *Daemon) Remount(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(statedir.QuoteGlob(filepath.Join(d.state, "registry")), "*.json"))
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
				for pause := restoreFirst; ; pause = min(2*pause, restoreMost) {
					select {
					case <-time.After(pause):
					case <-d.ctx.Done():
						return
					}
					if d.remount(d.ctx, path) {
						return
					}
				}
			})
		})
	}
	all.Wait()
	return ctx.Err()
}

// remount restores one mount. It returns false if that failed and is to be tried again.
func (d *Daemon) remount(ctx context.Context, path string) bool {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true // it was unregistered
	}
	var r statedir.Registered
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && (r.Version != statedir.RegistryVersion || !filepath.IsAbs(r.Request.Dir)) {
		err = fmt.Errorf("%w: version %d", statedir.ErrRecord, r.Version)
	}
	if err != nil {
		d.log.Error("restore mount", zap.String("file", path), zap.Error(err))
		return true
	}
	if _, there := d.find(r.Request.Dir); there {
		return true
	}
	r.Request.Wait = control.WaitTree
	if r.Request.Session != "" {
		if _, err := os.Lstat(filepath.Join(d.homes.Dir(), r.Request.Session)); err == nil {
			r.Request.Ref = "" // it goes on where it was, and nobody is asked
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	_, _, err = d.mount(ctx, r.Request, beginning{base: &r.Record}, func(control.Progress) {})
	if err == nil {
		return true
	}
	d.log.Error("restore mount", zap.String("dir", r.Request.Dir), zap.Error(err))
	d.failures.Add(statedir.Failure{
		Dir: r.Request.Dir, ID: r.Request.Session, Remote: statedir.WithoutSecrets(r.Request.Remote), Session: r.Record.Session, Ref: r.Record.Ref, Commit: r.Record.Commit,
		When: time.Now(), Cause: "it was not mounted again: " + err.Error(),
	})
	return ctx.Err() != nil
}

// Package dockervolume is a volume driver of Docker, as a plugin outside of dockerd: mounts of repositories are volumes of containers.
//
// Terms. A volume is a name with options (package volume). It is mounted while at least one container uses it, at a directory of the
// state directory, by the daemon of the host. A use is the id that Docker passes when a container starts and when it ends.
//
// Promises. Every request can be repeated. Volumes and uses are in files, so they survive a restart of dockerd, of the plugin and of the
// daemon. The work in a volume is in a session, which is kept on the host when the last container ends, and pushed to its session
// remote. A volume is not removed before its session is on its session remote, unless its option onDelete permits that.
//
// Lock order: at most one lock of a volume is held at a time. It is held while the daemon is waited for.
package dockervolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/volume"
)

// Docker gives up after two minutes (Create and Mount) or one minute (Remove and Unmount). The driver ends its requests earlier, so that
// the user sees the reason.
const (
	mountTime   = 110 * time.Second
	releaseTime = 50 * time.Second
	// lastPush is the maximum time for which the end of the last container waits until the session is pushed.
	lastPush = 20 * time.Second
)

// Daemon is the part of control.Client that a driver uses.
type Daemon interface {
	volume.Daemon
	SessionDelete(ctx context.Context, r control.SessionDeleteRequest) (control.SessionDeleteReply, error)
}

// Config configures a driver.
type Config struct {
	Dir  string                                    // directory of the driver: records, and the directories of mounts
	Host string                                    // name of this host
	Dial func(ctx context.Context) (Daemon, error) // connects to the daemon of this host, which it may start
	Log  *zap.Logger
}

// Driver carries out the requests of Docker. Its methods may be called from any goroutine.
type Driver struct {
	Config
	records records

	mu    sync.Mutex
	locks map[string]*sync.Mutex // one lock for each volume
}

// New returns a driver, and creates its directory.
func New(c Config) (*Driver, error) {
	d := &Driver{Config: c, records: records{filepath.Join(c.Dir, "volumes")}, locks: map[string]*sync.Mutex{}}
	for _, dir := range []string{d.records.dir, filepath.Join(c.Dir, "mounts")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open directory of volumes: %w", err)
		}
	}
	return d, nil
}

// lock acquires the lock of a volume.
func (d *Driver) lock(name string) (unlock func()) {
	d.mu.Lock()
	l, ok := d.locks[name]
	if !ok {
		l = &sync.Mutex{}
		d.locks[name] = l
	}
	d.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// mountpoint returns the directory at which a volume is mounted.
func (d *Driver) mountpoint(name string) string { return filepath.Join(d.Dir, "mounts", name) }

// load returns the record of a volume, or an error if there is none.
func (d *Driver) load(name string) (record, error) {
	rec, ok, err := d.records.load(name)
	if err == nil && !ok {
		err = fmt.Errorf("volume %s does not exist", name)
	}
	return rec, err
}

// Create creates a volume, and sends no request to the remote. It succeeds if the volume exists with the same options.
func (d *Driver) Create(name string, options map[string]string) error {
	defer d.lock(name)()
	old, exists, err := d.records.load(name)
	if err != nil {
		return err
	}
	if exists {
		if !maps.Equal(old.Options, options) {
			return fmt.Errorf("volume %s exists with other options", name)
		}
		return nil
	}
	rec := record{Name: name, Options: options, Created: time.Now()}
	if _, err := rec.volume(d.Host); err != nil {
		return fmt.Errorf("create volume %s: %w", name, err)
	}
	return d.records.save(rec)
}

// Mount mounts a volume for the container use with the id use, and returns the directory.
func (d *Driver) Mount(ctx context.Context, name, use string) (dir string, err error) {
	defer d.lock(name)()
	ctx, cancel := context.WithTimeout(ctx, mountTime)
	defer cancel()
	rec, err := d.load(name)
	if err != nil {
		return "", err
	}
	v, err := rec.volume(d.Host)
	if err != nil {
		return "", fmt.Errorf("mount volume %s: %w", name, err)
	}
	daemon, err := d.Dial(ctx)
	if err != nil {
		return "", err
	}
	dir = d.mountpoint(name)
	if _, mounted, err := served(ctx, daemon, dir); err != nil {
		return "", err
	} else if !mounted {
		r := v.Request
		r.Dir = dir
		r.Timeout = min(r.Timeout, mountTime)
		if _, err := daemon.Mount(ctx, r, func(control.Progress) {}); err != nil {
			return "", err
		}
	}
	if !slices.Contains(rec.Uses, use) {
		rec.Uses = append(rec.Uses, use)
		return dir, d.records.save(rec)
	}
	return dir, nil
}

// Unmount ends the use of a volume by a container. After the last one, it unmounts the volume; the session is kept on this host, and
// is pushed as far as that is possible in a short time.
func (d *Driver) Unmount(ctx context.Context, name, use string) error {
	defer d.lock(name)()
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	rec, err := d.load(name)
	if err != nil {
		return err
	}
	rec.Uses = slices.DeleteFunc(rec.Uses, func(u string) bool { return u == use })
	if len(rec.Uses) > 0 {
		return d.records.save(rec)
	}
	daemon, err := d.Dial(ctx)
	if err != nil {
		return err
	}
	dir := d.mountpoint(name)
	if err := d.unmount(ctx, daemon, dir); err != nil {
		return err
	}
	return d.records.save(rec) // after the unmount, so that a repeated request unmounts again
}

// unmount unmounts the mount at dir, if there is one, and keeps its session.
func (d *Driver) unmount(ctx context.Context, daemon Daemon, dir string) error {
	r := control.UnmountRequest{Dir: dir, Timeout: lastPush}
	reply, err := daemon.Unmount(ctx, r)
	if is(err, control.CodeBusy) { // the containers have ended, so only processes of the host use the mount
		r.Detach = true
		reply, err = daemon.Unmount(ctx, r)
	}
	if is(err, control.CodeNotMounted) {
		return nil
	}
	if err == nil && reply.Pending > 0 {
		d.Log.Warn("session of a volume is not on its session remote; it is kept on this host", zap.String("session", reply.Session),
			zap.String("cause", reply.Why))
	}
	return err
}

// is reports whether err has this code.
func is(err error, code control.ErrorCode) bool {
	var e *control.Error
	return errors.As(err, &e) && e.ErrorCode() == code
}

// served returns the mount at dir, and false if no process serves it.
func served(ctx context.Context, daemon Daemon, dir string) (control.MountStatus, bool, error) {
	status, err := daemon.Mounts(ctx)
	if err != nil {
		return control.MountStatus{}, false, err
	}
	for _, m := range status.Mounts {
		if m.Dir == dir && m.State != control.StateFailed {
			return m, true, nil
		}
	}
	return control.MountStatus{}, false, nil
}

// Remove removes a volume. Docker does not request that while a container uses the volume, so uses that are still recorded are those of
// containers that died with dockerd.
func (d *Driver) Remove(ctx context.Context, name string) error {
	defer d.lock(name)()
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	rec, exists, err := d.records.load(name)
	if err != nil || !exists {
		return err
	}
	daemon, err := d.Dial(ctx)
	if err != nil {
		return err
	}
	v, err := rec.volume(d.Host)
	if err != nil { // the record is of another version; the session is kept
		v = volume.Volume{OnDelete: volume.DeleteWaits}
	}
	dir := d.mountpoint(name)
	if err := volume.Release(ctx, daemon, dir, v, true); err != nil {
		return err
	}
	if v.OnDelete == volume.DeleteDiscards {
		if err := discard(ctx, daemon, dir); err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove directory of volume %s: %w", name, err)
	}
	return d.records.remove(name)
}

// discard deletes the sessions that were last mounted at dir and are not mounted, on their session remotes too. They can be restored for
// 7 days.
func discard(ctx context.Context, daemon Daemon, dir string) error {
	list, err := daemon.Sessions(ctx)
	if err != nil {
		return err
	}
	for _, s := range list.Sessions {
		if s.Dir != dir || s.Mounted {
			continue
		}
		if _, err := daemon.SessionDelete(ctx, control.SessionDeleteRequest{Of: s.Name}); err != nil {
			return err
		}
	}
	return nil
}

// Volume is a volume as Docker shows it.
type Volume struct {
	Name       string
	Mountpoint string         `json:",omitempty"` // "": no container uses the volume
	CreatedAt  string         `json:",omitempty"` // RFC 3339
	Status     map[string]any `json:",omitempty"`
}

// Get returns a volume with the state of its mount and its session.
func (d *Driver) Get(ctx context.Context, name string) (Volume, error) {
	rec, err := d.load(name)
	if err != nil {
		return Volume{}, err
	}
	out := Volume{Name: name, CreatedAt: rec.Created.Format(time.RFC3339), Status: map[string]any{"remote": rec.Options["remote"]}}
	daemon, err := d.Dial(ctx)
	if err != nil {
		return out, err
	}
	m, mounted, err := served(ctx, daemon, d.mountpoint(name))
	if err != nil || !mounted {
		out.Status["state"] = "not mounted"
		return out, err
	}
	out.Mountpoint = m.Dir
	out.Status["state"] = string(m.State)
	out.Status["commit"], out.Status["containers"] = m.Commit, len(rec.Uses)
	if s := m.Session; s.Name != "" {
		out.Status["session"], out.Status["pending"] = s.Name, s.Pending
	}
	return out, nil
}

// List returns all volumes.
func (d *Driver) List(ctx context.Context) ([]Volume, error) {
	recs, err := d.records.list()
	if err != nil || len(recs) == 0 {
		return nil, err
	}
	daemon, err := d.Dial(ctx)
	if err != nil {
		return nil, err
	}
	status, err := daemon.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	var all []Volume
	for _, rec := range recs {
		v := Volume{Name: rec.Name, CreatedAt: rec.Created.Format(time.RFC3339)}
		if dir := d.mountpoint(rec.Name); slices.ContainsFunc(status.Mounts, func(m control.MountStatus) bool { return m.Dir == dir }) {
			v.Mountpoint = dir
		}
		all = append(all, v)
	}
	return all, nil
}

// Path returns the directory of a volume; "" if it is not mounted.
func (d *Driver) Path(ctx context.Context, name string) (string, error) {
	v, err := d.Get(ctx, name)
	return v.Mountpoint, err
}

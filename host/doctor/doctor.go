// Package doctor examines everything that mounts depend on: the host, the state directory, stores, sessions and
// remotes. It returns findings, and on request repairs problems that can be repaired without loss. It needs no daemon,
// and does not change the files of a mount that is in use.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Level is the severity of a finding.
type Level string

const (
	LevelOK   Level = "ok"   // nothing is wrong; also used for information
	LevelWarn Level = "warn" // a limitation, or a problem that does not prevent the use of the examined object
	// LevelBad is a failure or damage.
	LevelBad Level = "bad"
)

// Finding is the result of examining one object.
type Finding struct {
	Object string `json:"object"` // path, name of a session, remote, or part of the host
	// What describes the finding, for the user.
	What  string `json:"what"`
	Wrong bool   `json:"wrong"` // whether Level is LevelBad
	// Mended is whether the problem was repaired.
	Mended bool   `json:"mended"`
	Hint   string `json:"hint,omitempty"`
	Level  Level  `json:"level"`
	Mend   string `json:"mend,omitempty"` // description of the repair that artifactfs doctor --fix would make
}

// doctor examines objects and collects findings. Only one goroutine may use it.
type doctor struct {
	homes    statedir.Homes
	repair   bool // whether problems are repaired
	deep     bool // whether the contents of packs are hashed
	findings []Finding
}

// add adds a finding, whose text is formatted as by fmt.Sprintf.
func (d *doctor) add(level Level, object, hint, format string, args ...any) {
	d.findings = append(d.findings, Finding{Object: object, What: fmt.Sprintf(format, args...),
		Wrong: level == LevelBad, Hint: hint, Level: level})
}

// ok adds a finding of LevelOK.
func (d *doctor) ok(object, format string, args ...any) {
	d.add(LevelOK, object, "", format, args...)
}

// warn adds a finding of LevelWarn.
func (d *doctor) warn(object, hint, format string, args ...any) {
	d.add(LevelWarn, object, hint, format, args...)
}

// wrong adds a finding of LevelBad.
func (d *doctor) wrong(object, hint, format string, args ...any) {
	d.add(LevelBad, object, hint, format, args...)
}

// repairProblem adds a finding of LevelBad about the problem what, which the function try can repair. If repairs were
// requested, mend calls try and records the result in the finding. Otherwise it adds how, a description of the repair,
// to the finding.
func (d *doctor) repairProblem(object, what, how string, try func() error) {
	f := Finding{Object: object, What: what, Wrong: true, Level: LevelBad, Mend: how}
	if d.repair {
		err := try()
		f.Mended, f.Mend = err == nil, ""
		if err != nil {
			f.What += "; repair failed: " + err.Error()
		}
	}
	d.findings = append(d.findings, f)
}

// Examine examines dead mounts, and all homes and shares in a state directory. A home is the directory with the
// overlay and the session of one mount; if a home is in use, only its session repository is checked. If repair is set,
// Examine repairs problems that can be repaired without loss; files whose directory is missing are moved to
// lost+found. If deep is set, it hashes the packs of session repositories. It returns an error if ctx ends or the
// homes cannot be listed.
func Examine(ctx context.Context, state string, repair, deep bool) ([]Finding, error) {
	d := &doctor{homes: statedir.Homes{State: state, Log: zap.NewNop()}, repair: repair, deep: deep}
	if err := d.deadMounts(ctx); err != nil {
		return d.findings, err
	}
	ids, removed, err := d.homes.IDs()
	if err != nil {
		return d.findings, err
	}
	for _, dir := range removed {
		// A process had renamed the home in order to remove it, and was then killed. Nothing in the home is needed.
		d.repairProblem(dir, "leftover of a process that was killed while it removed this directory", "removes the directory",
			func() error { return os.RemoveAll(dir) })
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return d.findings, ctx.Err()
		}
		d.home(ctx, id)
	}
	d.shares()
	return d.findings, nil
}

// deadMounts reports FUSE mounts of this program whose process has died, including the mounts of other state
// directories.
func (d *doctor) deadMounts(ctx context.Context) error {
	mounts, err := mountinfo.Self()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Type == mountpoint.FUSEType && mountpoint.IsDead(m.Point) {
			d.repairProblem(m.Point, "directory has a dead mount, whose process has exited", "removes the dead mount",
				func() error { return mountpoint.Detach(ctx, m.Point) })
		}
	}
	return nil
}

// home examines the home called id. It holds the lock of the home during the examination.
func (d *doctor) home(ctx context.Context, id string) {
	t, err := d.homes.LockExisting(id)
	switch {
	// A locked home belongs to a mount or to another command.
	case errors.Is(err, disk.ErrLocked):
		if holder, ok := d.homes.Holder(id); ok {
			d.ok(id, "session is mounted at %s by process %s; its files were not checked", holder.Dir, holder.PID)
			home := filepath.Join(d.homes.Dir(), id)
			if r, err := statedir.ReadRecord(home); err == nil {
				d.carried(ctx, id, home, r, true)
			}
		}
		return
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		d.wrong(id, "", "session cannot be read: %v", err)
		return
	}
	// The method Remove has unlocked the home if removed is true. Then the home must not be unlocked a second time.
	removed := false
	defer func() {
		if !removed {
			t.Unlock()
		}
	}()
	r, err := statedir.ReadRecord(t.Dir)
	switch {
	// A process that was killed before its first change leaves a home without a record.
	case errors.Is(err, fs.ErrNotExist) && !statedir.HasOverlay(t.Dir):
		d.repairProblem(t.Dir, "leftover of a process that was killed while it mounted", "removes the directory",
			func() error { removed = true; return t.Remove() })
		return
	case errors.Is(err, statedir.ErrNewer):
		d.wrong(id, "use the artifactfs version that created the session", "%v", err)
		return
	case err != nil:
		d.wrong(id, d.changedFiles(filepath.Join(t.Dir, "overlay")), "%v", err)
	}
	if err == nil {
		d.carried(ctx, id, t.Dir, r, false)
	}
	if statedir.HasOverlay(t.Dir) && !d.overlay(id, t) {
		return
	}
	// A home that contains no changes and no damage can be removed.
	if _, w, lookErr := t.Inspect(); err == nil && lookErr == nil && !w.Any() && d.isSound(id) {
		d.repairProblem(t.Dir, "leftover of a process that was killed, without any changes", "removes the directory",
			func() error { removed = true; return t.Remove() })
	} else if err == nil && lookErr == nil && w.Any() {
		d.ok(id, "%s, last mounted at %s", w, r.Dir)
	}
}

// isSound reports whether the session called id has no finding of LevelBad, except those whose problems were repaired.
func (d *doctor) isSound(id string) bool {
	for _, f := range d.findings {
		if f.Object == id && f.Wrong && !f.Mended {
			return false
		}
	}
	return true
}

// overlay checks the overlay of the home t, and repairs it if repairs were requested. It returns false if the overlay
// cannot be read. After a repair it marks the counts of changed paths in the record of the home as invalid.
func (d *doctor) overlay(id string, t *statedir.Home) bool {
	dir := filepath.Join(t.Dir, "overlay")
	report, err := overlay.Check(dir, d.repair, statedir.SharesDir(d.homes.State))
	for _, f := range report.Findings {
		// If Check has repaired the overlay, each finding describes a repair that was made. In that case no suggestion of a
		// repair is added.
		how := "repairs the overlay; files without a directory are moved to lost+found"
		if d.repair {
			how = ""
		}
		d.findings = append(d.findings, Finding{Object: id, What: f.What, Wrong: true, Level: LevelBad,
			Mended: f.Repaired, Mend: how})
	}
	switch {
	case errors.Is(err, overlay.ErrVersion):
		d.wrong(id, "use the artifactfs version that created the session", "%v", err)
	case errors.Is(err, overlay.ErrDamaged) && !d.repair:
		d.wrong(id, "run artifactfs doctor --fix to repair the overlay", "%v", err)
	case err != nil:
		d.wrong(id, d.changedFiles(dir), "%v", err)
	}
	if d.repair && len(report.Findings) > 0 {
		// The repair may have changed the number of changed paths that the record contains.
		if r, err := statedir.ReadRecord(t.Dir); err == nil && r.Counted {
			r.Counted = false
			if err := r.Save(t.Dir); err != nil {
				d.wrong(id, "", "%v", err)
			}
		}
	}
	return err == nil
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/overlay"
)

// lowSpace is what a state directory should have free, in bytes.
const lowSpace = 64 << 20

// Finding is one thing that the doctor found.
type Finding struct {
	Object string `json:"object"` // a path, or the name of a session
	What   string `json:"what"`
	Wrong  bool   `json:"wrong"` // false: it is only good to know
	Mended bool   `json:"mended"`
	Hint   string `json:"hint,omitempty"`
}

// doctor collects findings.
type doctor struct {
	homes    homes
	repair   bool
	findings []Finding
}

func (d *doctor) wrong(object, hint, format string, args ...any) {
	d.findings = append(d.findings, Finding{Object: object, What: fmt.Sprintf(format, args...), Wrong: true, Hint: hint})
}

// mend is wrong about what can be mended: with repair it is tried.
func (d *doctor) mend(object, what string, try func() error) {
	f := Finding{Object: object, What: what, Wrong: true, Hint: "artifactfs doctor --repair removes it"}
	if d.repair {
		err := try()
		f.Mended, f.Hint = err == nil, ""
		if err != nil {
			f.What += ", and it cannot be mended: " + err.Error()
		}
	}
	d.findings = append(d.findings, f)
}

// Examine looks at the host, at dead mounts, and at everything below a state directory that is not mounted. With repair
// it mends what can be mended without loss: work that does not fit anywhere goes to lost+found.
func Examine(ctx context.Context, state string, repair bool) ([]Finding, error) {
	d := &doctor{homes: homes{state, zap.NewNop()}, repair: repair}
	d.host(state)
	if err := d.deadMounts(ctx); err != nil {
		return d.findings, err
	}
	ids, removed, err := d.homes.ids()
	if err != nil {
		return d.findings, err
	}
	for _, dir := range removed {
		d.mend(dir, "a killed process was about to remove it", func() error { return os.RemoveAll(dir) })
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return d.findings, ctx.Err()
		}
		d.home(id)
	}
	return d.findings, nil
}

func (d *doctor) host(state string) {
	if err := checkDevice(); err != nil {
		d.wrong("/dev/fuse", "load the kernel's fuse module; in a container pass --device /dev/fuse and the right to mount", "%v", err)
	}
	if _, err := exec.LookPath("fusermount3"); err != nil && os.Geteuid() != 0 {
		d.wrong("fusermount3", "install fuse3, or mount as root", "only root can mount without it")
	}
	if _, err := exec.LookPath("git"); err != nil {
		d.wrong("git", "install git", "it is not installed")
	}
	if _, err := os.Lstat(state); errors.Is(err, fs.ErrNotExist) {
		return // nothing has ever been mounted
	}
	if err := unix.Access(state, unix.W_OK|unix.X_OK|unix.R_OK); err != nil {
		d.wrong(state, "choose another place with --state", "the state directory cannot be used: %v", err)
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(state, &st); err == nil && st.Bavail*uint64(st.Bsize) < lowSpace {
		d.wrong(state, "free some space, or choose another place with --state", "only %d MiB are free there", st.Bavail*uint64(st.Bsize)>>20)
	}
}

// deadMounts finds mounts whose process is gone, whoever made them.
func (d *doctor) deadMounts(ctx context.Context) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		_, rest, ok := strings.Cut(line, " - ")
		if len(fields) < 5 || !ok || !strings.HasPrefix(rest, fuseType+" ") {
			continue
		}
		if dir := unquote.Replace(fields[4]); isDead(dir) {
			d.mend(dir, "a dead mount is there: the process that served it is gone", func() error { return detachDead(ctx, dir) })
		}
	}
	return nil
}

// home looks at one home.
func (d *doctor) home(id string) {
	t, err := d.homes.existing(id)
	switch {
	case errors.Is(err, disk.ErrLocked):
		if holder, ok := d.homes.holder(id); ok {
			d.findings = append(d.findings, Finding{Object: id, What: fmt.Sprintf("mounted at %s by process %s: not checked", holder.dir, holder.pid)})
		}
		return
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		d.wrong(id, "", "it cannot be looked at: %v", err)
		return
	}
	removed := false
	defer func() {
		if !removed {
			t.unlock()
		}
	}()
	r, err := readRecord(t.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !hasOverlay(t.dir):
		d.mend(t.dir, "a killed mount left it", func() error { removed = true; return t.remove() })
		return
	case errors.Is(err, errNewer):
		d.wrong(id, "use the artifactfs that made it", "%v", err)
		return
	case err != nil:
		d.wrong(id, "what was changed is in "+filepath.Join(t.dir, "overlay", "contents"), "%v", err)
	}
	if hasOverlay(t.dir) && !d.overlay(id, t) {
		return
	}
	if _, w, lookErr := t.look(); err == nil && lookErr == nil && !w.any() && d.sound(id) {
		d.mend(t.dir, "a killed mount left it, without any changes", func() error { removed = true; return t.remove() })
	} else if err == nil && lookErr == nil && w.any() {
		d.findings = append(d.findings, Finding{Object: id, What: fmt.Sprintf("%s, last mounted at %s", changedText(w.changed), r.Dir)})
	}
}

// sound says whether nothing wrong is left of a session.
func (d *doctor) sound(id string) bool {
	for _, f := range d.findings {
		if f.Object == id && f.Wrong && !f.Mended {
			return false
		}
	}
	return true
}

// overlay checks one; false: it could not be read at all.
func (d *doctor) overlay(id string, t *home) bool {
	dir := filepath.Join(t.dir, "overlay")
	report, err := overlay.Check(dir, d.repair)
	for _, f := range report.Findings {
		hint := "artifactfs doctor --repair mends what can be mended"
		if d.repair {
			hint = ""
		}
		d.findings = append(d.findings, Finding{Object: id, What: f.What, Wrong: true, Mended: f.Repaired, Hint: hint})
	}
	switch {
	case errors.Is(err, overlay.ErrVersion):
		d.wrong(id, "use the artifactfs that made it", "%v", err)
	case errors.Is(err, overlay.ErrDamaged) && !d.repair:
		d.wrong(id, "artifactfs doctor --repair mends what can be mended", "%v", err)
	case err != nil:
		d.wrong(id, "what was changed is in "+filepath.Join(dir, "contents"), "%v", err)
	}
	if d.repair && len(report.Findings) > 0 {
		if r, err := readRecord(t.dir); err == nil && r.Counted {
			r.Counted = false
			if err := r.save(t.dir); err != nil {
				d.wrong(id, "", "%v", err)
			}
		}
	}
	return err == nil
}

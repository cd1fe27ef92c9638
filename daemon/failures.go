package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// failure is why there is no mount any more where one was. It is told by status and list, and by the next mount there.
type failure struct {
	Dir     string    `json:"dir"`
	ID      string    `json:"id"`
	Remote  string    `json:"remote"` // without secrets
	Session string    `json:"session"`
	Ref     string    `json:"ref"`
	Commit  string    `json:"commit"`
	When    time.Time `json:"when"`
	Why     string    `json:"why"`
}

// failures is the directory of a state directory that has a file of each.
type failures struct {
	state string
	log   *zap.Logger
}

func failureOf(h handover, why error) failure {
	return failure{
		Dir: h.Dir, ID: h.ID, Remote: secretFree(h.Request.Remote), Session: h.Record.Session, Ref: h.Record.Ref, Commit: h.Record.Commit,
		When: time.Now(), Why: why.Error(),
	}
}

// fileOf names a file after a directory.
func fileOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8]) + ".json"
}

func (f failures) dir() string { return filepath.Join(f.state, "failed") }

func (f failures) note(what failure) {
	text, err := json.MarshalIndent(what, "", "\t")
	if err == nil {
		err = os.MkdirAll(f.dir(), 0o700)
	}
	if err == nil {
		err = disk.WriteFile(filepath.Join(f.dir(), fileOf(what.Dir)), append(text, '\n'), 0o600)
	}
	if err != nil {
		f.log.Warn("note why a mount ended", zap.String("dir", what.Dir), zap.Error(err))
	}
}

// forget is for somebody who mounts there, and is told, or unmounts there. false: there was nothing to forget.
func (f failures) forget(dir string, progress func(control.Progress)) bool {
	path := filepath.Join(f.dir(), fileOf(dir))
	what, ok := readFailure(path)
	if ok && progress != nil {
		progress(control.Progress{Message: fmt.Sprintf("the mount that was here ended at %s: %s", what.When.Format(time.DateTime), what.Why)})
	}
	return os.Remove(path) == nil && ok
}

func readFailure(path string) (what failure, ok bool) {
	text, err := os.ReadFile(path)
	return what, err == nil && json.Unmarshal(text, &what) == nil && filepath.IsAbs(what.Dir)
}

// list gives all of them, by directory.
func (f failures) list() (all []failure) {
	entries, err := os.ReadDir(f.dir())
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if what, ok := readFailure(filepath.Join(f.dir(), e.Name())); ok {
			all = append(all, what)
		}
	}
	slices.SortFunc(all, func(a, b failure) int { return strings.Compare(a.Dir, b.Dir) })
	return all
}

func (f failure) status() control.MountStatus {
	return control.MountStatus{
		ID: f.ID, Dir: f.Dir, Remote: f.Remote, Ref: shortRef(f.Ref), Commit: f.Commit, State: control.StateFailed, Error: f.Why,
		Since: f.When, History: control.HistoryShallow, Session: control.SessionStatus{Name: f.Session},
	}
}

// departed remembers mounts that ended while nobody could answer who asked for it: he asks again.
type departed struct {
	mu     sync.Mutex
	mounts map[string]*mount // by directory
}

// departedTime is how long he may take.
const departedTime = time.Minute

func (d *departed) add(m *mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts == nil {
		d.mounts = map[string]*mount{}
	}
	d.mounts[m.dir] = m
	time.AfterFunc(departedTime, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.mounts[m.dir] == m {
			delete(d.mounts, m.dir)
		}
	})
}

func (d *departed) take(dir string) (*mount, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.mounts[dir]
	delete(d.mounts, dir)
	return m, ok
}

package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Failure describes a mount that ended although its user did not request that. The commands "status" and "list" report
// the failure, and the next mount at the same directory reports it as well.
type Failure struct {
	Dir     string    `json:"dir"`     // directory where the failed mount was
	ID      string    `json:"id"`      // name of the mount's home
	Remote  string    `json:"remote"`  // URL of the mounted remote, without secrets
	Session string    `json:"session"` // session of the mount; "" if the mount had no session
	Ref     string    `json:"ref"`     // ref that was mounted
	Commit  string    `json:"commit"`  // base commit of the mount
	When    time.Time `json:"when"`    // time of the failure
	Cause   string    `json:"why"`     // description of the failure, for the user
}

// Failures accesses the directory failed/ of a state directory, which contains one file for each directory at which a
// mount has failed.
type Failures struct {
	State string
	Log   *zap.Logger
}

// FileName returns the name that the files of the mount at dir have in the directories failed/ and registry/.
func FileName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8]) + ".json"
}

// Dir returns the path of the directory failed/.
func (f Failures) Dir() string { return filepath.Join(f.State, "failed") }

// Add records the failure of a mount. It replaces an earlier failure of a mount at the same directory. If the failure
// cannot be recorded, Add logs the error.
func (f Failures) Add(failure Failure) {
	text, err := json.MarshalIndent(failure, "", "\t")
	if err == nil {
		err = os.MkdirAll(f.Dir(), 0o700)
	}
	if err == nil {
		err = disk.WriteFile(filepath.Join(f.Dir(), FileName(failure.Dir)), append(text, '\n'), 0o600)
	}
	if err != nil {
		f.Log.Warn("record failure of mount", zap.String("dir", failure.Dir), zap.Error(err))
	}
}

// Forget removes the recorded failure of the mount at dir, because another mount is there, or the user has unmounted
// it. It passes a message about the failure to progress, unless progress is nil. It returns false if no failure was
// recorded.
func (f Failures) Forget(dir string, progress func(control.Progress)) bool {
	path := filepath.Join(f.Dir(), FileName(dir))
	failure, ok := readFailure(path)
	if ok && progress != nil {
		progress(control.Progress{Message: fmt.Sprintf("the previous mount at this directory failed at %s: %s",
			failure.When.Format(time.DateTime), failure.Cause)})
	}
	return os.Remove(path) == nil && ok
}

// readFailure reads the recorded failure in the file path. It returns false if the file is missing or damaged.
func readFailure(path string) (failure Failure, ok bool) {
	text, err := os.ReadFile(path)
	return failure, err == nil && json.Unmarshal(text, &failure) == nil && filepath.IsAbs(failure.Dir)
}

// List returns all recorded failures, sorted by directory. It returns nil if the failures cannot be read.
func (f Failures) List() (all []Failure) {
	entries, err := os.ReadDir(f.Dir())
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if failure, ok := readFailure(filepath.Join(f.Dir(), e.Name())); ok {
			all = append(all, failure)
		}
	}
	slices.SortFunc(all, func(a, b Failure) int { return strings.Compare(a.Dir, b.Dir) })
	return all
}

// Status returns the failure in the form of a mount status.
func (f Failure) Status() control.MountStatus {
	return control.MountStatus{
		ID: f.ID, Dir: f.Dir, Remote: f.Remote, Ref: ShortRef(f.Ref), Commit: f.Commit, State: control.StateFailed,
		Error: f.Cause,
		Since: f.When, History: control.HistoryShallow, Session: control.SessionStatus{Name: f.Session},
	}
}

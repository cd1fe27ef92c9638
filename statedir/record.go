package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/object"
)

const (
	RecordVersion = 1 // version of records that this program writes, and the highest that it reads
	RecordName    = "session.json"
	maxRecord     = 1 << 20 // bytes; a record usually has a few hundred
)

var (
	// ErrNewer reports a record of a later version.
	ErrNewer = errors.New("written by a newer artifactfs")
	// ErrRecord reports a damaged record.
	ErrRecord = errors.New("not a session's record")
)

// Record is session.json in a home: the base of a session and the options of its last mount. A new field does not change
// the version.
type Record struct {
	Version int       `json:"version"`
	Session string    `json:"session"`
	Remote  string    `json:"remote"` // URL without secrets
	Dir     string    `json:"dir"`    // directory where it is mounted, or was mounted last
	Asked   string    `json:"asked"`  // ref that the user requested (--ref); "" for the remote's HEAD
	Ref     string    `json:"ref"`    // full name; "" if the user requested a commit by its ID
	Commit  string    `json:"commit"` // base commit; "" for an unborn branch, as is Tree
	Tree    string    `json:"tree"`
	Format  string    `json:"format"` // object format of the IDs
	Time    time.Time `json:"time"`   // modification time of unchanged files
	UID     uint32    `json:"uid"`    // owner of unchanged files
	GID     uint32    `json:"gid"`
	Began   time.Time `json:"began"`

	// Checkpoint that the session started from, instead of the commit's tree; nil if none.
	Checkpoint *Checkpoint `json:"point,omitempty"`

	// Made are the directories that were created for the mount, deepest last. They stay after a kill; the next mount in
	// Dir removes them when it ends.
	Made []string `json:"made,omitempty"`

	// Redirects of the last mount; their directories in the overlay do not count as changes of the user.
	Redirects  []Redirect `json:"redirects"`
	Configured []string   `json:"configured"` // redirects that the repository's configuration names

	// Until is when the session is moved to the trash, unless it is mounted then; zero if it is not moved automatically.
	Until time.Time `json:"until,omitzero"`

	// Carried are the options of the session remote and of checkpoints; the URL is without secrets.
	Carried control.SessionOptions `json:"carried,omitzero"`

	// Counted states that Changed and Bytes match the overlay in the home. It is false while the session is mounted, and
	// therefore after a kill.
	Counted bool  `json:"counted"`
	Changed int64 `json:"changed"` // number of changed paths
	Bytes   int64 `json:"bytes"`   // size of changed contents
}

// Redirect is a redirected path and its directory in the home.
type Redirect struct {
	Path    string `json:"path"`    // relative to the mount
	Backing string `json:"backing"` // name below redirect/
}

// SessionName returns the default name of a mount's session. It depends only on remote and directory, so that a second
// mount of the same remote at the same directory resumes the session.
func SessionName(remote, dir string) string {
	sum := sha256.Sum256([]byte(remote + "\x00" + dir))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, filepath.Base(dir))
	if name = strings.TrimLeft(name, "._-"); name == "" {
		name = "mount"
	}
	return name[:min(60, len(name))] + "-" + hex.EncodeToString(sum[:4])
}

// ReadRecord reads the record of the home at a path. It returns fs.ErrNotExist if there is none, ErrNewer if it has a
// later version, and ErrRecord if it is damaged.
func ReadRecord(home string) (Record, error) {
	path := filepath.Join(home, RecordName)
	f, err := os.Open(path)
	if err != nil {
		return Record{}, fmt.Errorf("read session: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return Record{}, fmt.Errorf("read session: %w", err)
	}
	r, err := DecodeRecord(text)
	if err != nil {
		return Record{}, fmt.Errorf("read session %s: %w", path, err)
	}
	return r, nil
}

// DecodeRecord parses a record. It checks the version first, because fields may mean something else in other versions.
func DecodeRecord(text []byte) (Record, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Version < 1 || len(text) > maxRecord {
		return Record{}, ErrRecord
	}
	if head.Version > RecordVersion {
		return Record{}, fmt.Errorf("%w: it is of version %d, this one knows %d", ErrNewer, head.Version, RecordVersion)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, ErrRecord
	}
	if _, err := r.Base(); err != nil || control.ValidSession(r.Session) != nil || !filepath.IsAbs(r.Dir) || r.Changed < 0 || r.Bytes < 0 {
		return Record{}, ErrRecord
	}
	for _, dir := range r.Made {
		if !filepath.IsAbs(dir) || !mountinfo.Within(dir, r.Dir) {
			return Record{}, ErrRecord
		}
	}
	for _, d := range r.Redirects {
		if !filepath.IsLocal(d.Path) || d.Backing != filepath.Base(d.Backing) || !filepath.IsLocal(d.Backing) || d.Backing == "." {
			return Record{}, ErrRecord
		}
	}
	return r, nil
}

// Base returns the base of the session. It returns ErrRecord if the IDs are damaged or have different formats.
func (r Record) Base() (fetch.Base, error) {
	b := fetch.Base{Ref: r.Ref, Time: r.Time}
	switch r.Format {
	case object.SHA1.String():
		b.Format = object.SHA1
	case object.SHA256.String():
		b.Format = object.SHA256
	default:
		return b, ErrRecord
	}
	if (r.Commit == "") != (r.Tree == "") {
		return b, ErrRecord
	}
	if r.Checkpoint != nil {
		var err error
		if b.Shown, err = object.ParseID(r.Checkpoint.Tree); err != nil || b.Shown.Format() != b.Format {
			return b, ErrRecord
		}
	}
	if r.Commit == "" {
		return b, nil
	}
	var err1, err2 error
	b.Commit, err1 = object.ParseID(r.Commit)
	b.Tree, err2 = object.ParseID(r.Tree)
	if err1 != nil || err2 != nil || b.Commit.Format() != b.Format || b.Tree.Format() != b.Format {
		return b, ErrRecord
	}
	return b, nil
}

// SetBase sets the base of the session to a snapshot.
func (r *Record) SetBase(s *fetch.Snapshot) {
	r.Ref, r.Format, r.Time = s.Ref, s.Format.String(), s.Time
	if !s.Commit.IsZero() {
		r.Commit, r.Tree = s.Commit.String(), s.Tree.String()
	}
}

// Save replaces the record of the home at a path by a rename. It does not sync; see SyncRecord.
func (r Record) Save(home string) error {
	r.Version = RecordVersion
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write session: %w", err)
	}
	path := filepath.Join(home, RecordName)
	err = os.WriteFile(path+".new", append(text, '\n'), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write session: %w", err)
	}
	return nil
}

// SyncRecord syncs the record of a home and the directories above it, so that they survive a power failure.
func SyncRecord(home string) error {
	for _, path := range []string{filepath.Join(home, RecordName), home, filepath.Dir(home), filepath.Dir(filepath.Dir(home))} {
		f, err := os.Open(path)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("write session: %w", err)
		}
	}
	return nil
}

// HasOverlay reports whether the overlay of the home at a path may have been written to. If that cannot be found out, it
// returns true.
func HasOverlay(home string) bool {
	if strings.HasPrefix(filepath.Base(home), NamelessPrefix) {
		return false // its overlay holds nothing but .git
	}
	if _, err := os.Lstat(filepath.Join(home, "overlay", "log")); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	contents, err := os.ReadDir(filepath.Join(home, "overlay", "contents"))
	return len(contents) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// HasSessionRepo reports whether the home at a path has a session repository. If that cannot be found out, it returns
// true.
func HasSessionRepo(home string) bool {
	_, err := os.Lstat(filepath.Join(home, SessionRepoName))
	return !errors.Is(err, fs.ErrNotExist)
}

// NamelessPrefix is the prefix of the ID of a mount without a session. No session has such a name.
const NamelessPrefix = "_"

// ShortRef returns the name of a branch or tag without refs/heads/ or refs/tags/.
func ShortRef(name string) string {
	for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return short
		}
	}
	return name
}

// SessionRepoName is the name of the session repository in a home.
const SessionRepoName = "session.git"

// Checkpoint is the checkpoint that a session started from instead of a commit, as stored in its record.
type Checkpoint struct {
	ID     string    `json:"id"`
	Commit string    `json:"commit"`
	Tree   string    `json:"tree"`
	State  string    `json:"state"`
	Time   time.Time `json:"time"`
	// Session remote of another session that has contents which are missing on this host; "" if none.
	From string `json:"from,omitempty"`

	Parent       string `json:"parent,omitempty"`        // session that this one was forked from
	ParentRemote string `json:"parent_remote,omitempty"` // session remote of Parent, without secrets
}

// ErrNoRecord reports a home with an overlay and without a record.
var ErrNoRecord = errors.New(RecordName + " is missing, and an overlay is there")

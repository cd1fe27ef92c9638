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
	RecordVersion = 1 // of records that this version writes, and the highest that it reads
	RecordName    = "session.json"
	maxRecord     = 1 << 20 // bytes; there are a few hundred
)

var (
	// ErrNewer reports a record of a later version.
	ErrNewer = errors.New("written by a newer artifactfs")
	// ErrRecord reports a damaged record.
	ErrRecord = errors.New("not a session's record")
)

// Record is session.json in a home: the base of a session and the options of its last mount. Fields are only ever added to a version.
type Record struct {
	Version int       `json:"version"`
	Session string    `json:"session"`
	Remote  string    `json:"remote"` // URL without secrets
	Dir     string    `json:"dir"`    // where it is mounted, or was last
	Asked   string    `json:"asked"`  // as --ref named it; "" is the remote's HEAD
	Ref     string    `json:"ref"`    // full name; "" of a commit that was named by its id
	Commit  string    `json:"commit"` // "" of an unborn branch, and so is Tree
	Tree    string    `json:"tree"`
	Format  string    `json:"format"` // of ids
	Time    time.Time `json:"time"`   // modification time of what was not changed
	UID     uint32    `json:"uid"`    // owner of what was not changed
	GID     uint32    `json:"gid"`
	Began   time.Time `json:"began"`

	Point *Checkpoint `json:"point,omitempty"` // that it began with instead of the commit's tree

	// Made are the directories that were made for the mount, the deepest last. After a kill they are still there, and
	// the next mount in Dir removes them at its end.
	Made []string `json:"made,omitempty"`

	Redirects  []Redirect `json:"redirects"`  // their placeholders in the overlay are no changes of the user
	Configured []string   `json:"configured"` // redirects that the repository's configuration names

	// Until is when the session goes to the trash, if it is not mounted then; zero: never by itself.
	Until time.Time `json:"until,omitzero"`

	// Carried says how the work is carried away; its remote is without secrets.
	Carried control.SessionOptions `json:"carried,omitzero"`

	// Counted says that Changed and Bytes are those of the overlay as it lies there. It is false while the session is
	// mounted, and so after a kill.
	Counted bool  `json:"counted"`
	Changed int64 `json:"changed"` // paths
	Bytes   int64 `json:"bytes"`
}

// Redirect is a redirected path and the name of its directory below redirect/ in the home.
type Redirect struct {
	Path    string `json:"path"`
	Backing string `json:"backing"` // name below redirect/
}

// SessionName returns the session of a mount that names none. It depends on remote and directory alone: mounting the same remote
// there again resumes the session.
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

// ReadRecord reads the record of the home at a path. It returns fs.ErrNotExist if there is none, ErrNewer for one of a later
// version, and ErrRecord for one that is damaged.
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

// DecodeRecord parses a record. It reads the version before anything else, since fields of other versions may mean other things.
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

// Base returns the base commit of the session.
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
	if r.Point != nil {
		var err error
		if b.Shown, err = object.ParseID(r.Point.Tree); err != nil || b.Shown.Format() != b.Format {
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

// SetBase sets the base commit: it is the reverse of Base.
func (r *Record) SetBase(s *fetch.Snapshot) {
	r.Ref, r.Format, r.Time = s.Ref, s.Format.String(), s.Time
	if !s.Commit.IsZero() {
		r.Commit, r.Tree = s.Commit.String(), s.Tree.String()
	}
}

// Save replaces the record of the home at a path by a rename. It does not sync.
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

// SyncRecord syncs the record of a home and the directories above it, so that they survive a power cut.
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

// HasOverlay reports whether the overlay of the home at a path has been written to. After an error it returns true.
func HasOverlay(home string) bool {
	if strings.HasPrefix(filepath.Base(home), NamelessPrefix) {
		return false // it shows .git and nothing else
	}
	if _, err := os.Lstat(filepath.Join(home, "overlay", "log")); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	contents, err := os.ReadDir(filepath.Join(home, "overlay", "contents"))
	return len(contents) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// HasSessionRepo reports whether the home at a path has a session repository.
func HasSessionRepo(home string) bool {
	_, err := os.Lstat(filepath.Join(home, SessionRepoName))
	return !errors.Is(err, fs.ErrNotExist)
}

// NamelessPrefix begins the id of a mount without a session; no session has such a name.
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

// Checkpoint is the checkpoint that a home began with instead of a commit, as its record has it.
type Checkpoint struct {
	ID     string    `json:"id"`
	Commit string    `json:"commit"`
	Tree   string    `json:"tree"`
	State  string    `json:"state"`
	Time   time.Time `json:"time"`
	From   string    `json:"from,omitempty"` // session remote of another session that has contents which are not here

	Parent       string `json:"parent,omitempty"`        // session that this one was forked from
	ParentRemote string `json:"parent_remote,omitempty"` // and its session remote, without secrets
}

// ErrNoRecord reports an overlay without a record.
var ErrNoRecord = errors.New(RecordName + " is missing, and an overlay is there")

package daemon

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
	recordVersion = 1
	recordName    = "session.json"
	maxRecord     = 1 << 20 // bytes; there are a few hundred
)

var (
	errNewer  = errors.New("written by a newer artifactfs")
	errRecord = errors.New("not a session's record")
)

// record is session.json: what a session is, mounted or not. Fields are only ever added to a version.
type record struct {
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

	Point *pointRecord `json:"point,omitempty"` // that it began with instead of the commit's tree

	// Made are the directories that were made for the mount, the deepest last. After a kill they are still there, and
	// the next mount in Dir removes them at its end.
	Made []string `json:"made,omitempty"`

	Redirects  []redirected `json:"redirects"`  // what the overlay shows in their places is ours, not the user's work
	Configured []string     `json:"configured"` // redirects that the repository's configuration names

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

// redirected is a path that lives outside of the mount.
type redirected struct {
	Path    string `json:"path"`
	Backing string `json:"backing"` // name below redirect/
}

// SessionName is the session of a mount that names none: mounting the same remote at the same directory goes on with
// what was left there.
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

// readRecord reads a home's record; fs.ErrNotExist: there is none.
func readRecord(home string) (record, error) {
	path := filepath.Join(home, recordName)
	f, err := os.Open(path)
	if err != nil {
		return record{}, fmt.Errorf("read session: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return record{}, fmt.Errorf("read session: %w", err)
	}
	r, err := decodeRecord(text)
	if err != nil {
		return record{}, fmt.Errorf("read session %s: %w", path, err)
	}
	return r, nil
}

// decodeRecord looks at the version before anything else: another version's fields are none of our business.
func decodeRecord(text []byte) (record, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Version < 1 || len(text) > maxRecord {
		return record{}, errRecord
	}
	if head.Version > recordVersion {
		return record{}, fmt.Errorf("%w: it is of version %d, this one knows %d", errNewer, head.Version, recordVersion)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, errRecord
	}
	if _, err := r.base(); err != nil || control.ValidSession(r.Session) != nil || !filepath.IsAbs(r.Dir) || r.Changed < 0 || r.Bytes < 0 {
		return record{}, errRecord
	}
	for _, dir := range r.Made {
		if !filepath.IsAbs(dir) || !mountinfo.Within(dir, r.Dir) {
			return record{}, errRecord
		}
	}
	for _, d := range r.Redirects {
		if !filepath.IsLocal(d.Path) || d.Backing != filepath.Base(d.Backing) || !filepath.IsLocal(d.Backing) || d.Backing == "." {
			return record{}, errRecord
		}
	}
	return r, nil
}

// base is the commit that the session began with.
func (r record) base() (fetch.Base, error) {
	b := fetch.Base{Ref: r.Ref, Time: r.Time}
	switch r.Format {
	case object.SHA1.String():
		b.Format = object.SHA1
	case object.SHA256.String():
		b.Format = object.SHA256
	default:
		return b, errRecord
	}
	if (r.Commit == "") != (r.Tree == "") {
		return b, errRecord
	}
	if r.Point != nil {
		var err error
		if b.Shown, err = object.ParseID(r.Point.Tree); err != nil || b.Shown.Format() != b.Format {
			return b, errRecord
		}
	}
	if r.Commit == "" {
		return b, nil
	}
	var err1, err2 error
	b.Commit, err1 = object.ParseID(r.Commit)
	b.Tree, err2 = object.ParseID(r.Tree)
	if err1 != nil || err2 != nil || b.Commit.Format() != b.Format || b.Tree.Format() != b.Format {
		return b, errRecord
	}
	return b, nil
}

// setBase is the reverse of base.
func (r *record) setBase(s *fetch.Snapshot) {
	r.Ref, r.Format, r.Time = s.Ref, s.Format.String(), s.Time
	if !s.Commit.IsZero() {
		r.Commit, r.Tree = s.Commit.String(), s.Tree.String()
	}
}

// save replaces the record so that a process that dies leaves the old one or the new one. It is not synced.
func (r record) save(home string) error {
	r.Version = recordVersion
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write session: %w", err)
	}
	path := filepath.Join(home, recordName)
	err = os.WriteFile(path+".new", append(text, '\n'), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write session: %w", err)
	}
	return nil
}

// syncRecord has the record, and the names on the way to it, survive a power cut.
func syncRecord(home string) error {
	for _, path := range []string{filepath.Join(home, recordName), home, filepath.Dir(home), filepath.Dir(filepath.Dir(home))} {
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

// hasOverlay says whether anything was kept below a home, with a record or without.
func hasOverlay(home string) bool {
	if strings.HasPrefix(filepath.Base(home), namelessPrefix) {
		return false // it shows .git and nothing else
	}
	if _, err := os.Lstat(filepath.Join(home, "overlay", "log")); !errors.Is(err, fs.ErrNotExist) {
		return true
	}
	contents, err := os.ReadDir(filepath.Join(home, "overlay", "contents"))
	return len(contents) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

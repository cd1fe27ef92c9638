package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	RecordVersion = 1 // version of the records that this program writes, and the highest that it can read
	// RecordName is the name of the file with the record in a home.
	RecordName = "session.json"
	// NewGitName is the name of the file in a home with what the git directory gets as soon as it exists.
	NewGitName = "git-new.json"
	// InodesName is the name of the file in a home that contains the inode table of its mount.
	InodesName = "inodes"
	maxRecord  = 1 << 20 // maximum size of a record in bytes; a typical record has a few hundred bytes
)

var (
	// ErrNewer means that a later version of this program has written a record.
	ErrNewer = errors.New("session was written by a newer version of artifactfs")
	// ErrRecord means that a record is damaged.
	ErrRecord = errors.New("invalid session record")
)

// Record is the contents of the file session.json in a home. It contains the base of a session and the options of its
// last mount. New fields may be added without a new version.
type Record struct {
	Version int    `json:"version"` // version of the format; see RecordVersion
	Session string `json:"session"` // name of the session
	Tenant  string `json:"tenant"`  // control.MountRequest.Tenant of the request that has started the session
	Remote  string `json:"remote"`  // URL of the mounted remote, without secrets
	Dir     string `json:"dir"`     // directory where the session is mounted, or was last mounted
	// ref that the user requested (--ref); "" if the user requested the remote's HEAD
	Asked string `json:"asked"`
	Ref   string `json:"ref"` // full name of the ref; "" if the user requested a commit by its ID
	// base commit; "" if the session started on an unborn branch, and then Tree is also ""
	Commit string    `json:"commit"`
	Tree   string    `json:"tree"`            // base tree of the session
	Format string    `json:"format"`          // object format of the IDs (sha1 or sha256)
	Time   time.Time `json:"time"`            // modification time of files that were not changed
	UID    uint32    `json:"uid"`             // owner of files that were not changed
	GID    uint32    `json:"gid"`             // group of files that were not changed
	Umask  *uint32   `json:"umask,omitempty"` // umask of files that were not changed; nil: 022
	Began  time.Time `json:"began"`           // time at which the session started

	// Checkpoint is the checkpoint from which the session started, instead of the tree of Commit; nil if the session
	// started from a commit.
	Checkpoint *Checkpoint `json:"point,omitempty"`
	Fork       Fork        `json:"fork,omitzero"` // what a fork has in addition

	// Checkout are settings of the repository of which the session is a tree: those that determine the contents of files,
	// and clone.defaultRemoteName. A mount of the session shows files as if the user had them.
	Checkout []gitdir.Setting `json:"checkout,omitempty"`

	// Made lists the parent directories of Dir that were created for the mount, the deepest one last. If the mount is
	// killed, these directories stay, and the next mount at Dir removes them when it ends.
	Made []string `json:"made,omitempty"`

	// Redirects are the redirects of the last mount. Their directories in the overlay do not count as changes of the user.
	Redirects  []Redirect `json:"redirects"`
	Configured []string   `json:"configured"` // paths of the redirects that the repository's configuration file names

	// Until is the time at which the session is moved to the trash, unless the session is mounted at that time. If Until
	// is zero, the session is never moved to the trash automatically.
	Until time.Time `json:"until,omitzero"`

	// Carried are the options of the session remote and of checkpoints. The URL of the session remote is stored without
	// secrets.
	Carried control.SessionOptions `json:"carried,omitzero"`

	// Counted is whether Changed and Bytes agree with the overlay in the home. It is false while the session is
	// mounted, so it stays false if the mount is killed.
	Counted bool  `json:"counted"`
	Changed int64 `json:"changed"` // number of changed paths
	Bytes   int64 `json:"bytes"`   // size of changed contents in bytes
}

// Fork is the part of a record that only forks have.
type Fork struct {
	// Head states where HEAD of a new git directory is; nil: where HEAD of the checkpoint or of the base commit was.
	Head *control.NewHead `json:"head,omitempty"`
	// Parent is the session from which the session was forked when that had no checkpoint; "": there is none, or the
	// checkpoint of the record has it.
	Parent string `json:"parent,omitempty"`
	// Settings are the settings of the parent's git directory that a new git directory of the fork gets, so that git
	// ignores the same files.
	Settings []gitdir.Setting `json:"settings,omitempty"`
	// Unfinished is whether the fork was not mounted yet. So it has nothing of its own, and may have a part of the files
	// that it gets from its parent. If the process dies, the home is removed.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Redirect is a path in the mount that is a plain directory elsewhere.
type Redirect struct {
	Path    string `json:"path"`    // path relative to the root of the mount
	Backing string `json:"backing"` // name of the plain directory, which is stored below redirect/ in the home
}

// SessionName returns the default name of a mount's session. The name depends only on the remote and the directory, so
// a second mount of the same remote at the same directory resumes the session.
func SessionName(remote, dir string) string {
	sum := sha256.Sum256([]byte(remote + "\x00" + dir))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, filepath.Base(dir))
	// The name is a component of the names of refs, which must not contain "..".
	for strings.Contains(name, "..") {
		name = strings.ReplaceAll(name, "..", "._")
	}
	if name = strings.TrimLeft(name, "._-"); name == "" {
		name = "mount"
	}
	return name[:min(60, len(name))] + "-" + hex.EncodeToString(sum[:4])
}

// ReadRecord reads the record in the directory home. It returns fs.ErrNotExist if the home has no record,
// ErrNewer if a later version of this program wrote the record, and ErrRecord if the record is damaged.
func ReadRecord(home string) (Record, error) {
	path := filepath.Join(home, RecordName)
	f, err := os.Open(path)
	if err != nil {
		return Record{}, fmt.Errorf("read session record: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return Record{}, fmt.Errorf("read session record: %w", err)
	}
	r, err := DecodeRecord(text)
	if err != nil {
		return Record{}, fmt.Errorf("read session record %s: %w", path, err)
	}
	return r, nil
}

// MountDirs returns the directories at which the mounts and sessions are mounted, or were mounted last, each once and
// in the order of their names. It leaves out homes whose record cannot be read.
func (h Homes) MountDirs() ([]string, error) {
	ids, _, err := h.IDs()
	if err != nil {
		return nil, err
	}
	dirs := map[string]bool{}
	for _, id := range ids {
		if r, err := ReadRecord(filepath.Join(h.Dir(), id)); err == nil && r.Dir != "" {
			dirs[r.Dir] = true
		}
	}
	return slices.Sorted(maps.Keys(dirs)), nil
}

// DecodeRecord parses and checks a record. It checks the version first, because the fields may have another meaning in
// another version of the format.
func DecodeRecord(text []byte) (Record, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Version < 1 || len(text) > maxRecord {
		return Record{}, ErrRecord
	}
	if head.Version > RecordVersion {
		return Record{}, fmt.Errorf("%w: record has version %d, this artifactfs supports up to %d", ErrNewer, head.Version,
			RecordVersion)
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return Record{}, ErrRecord
	}
	if _, err := r.Base(); err != nil || control.ValidSession(r.Session) != nil || !filepath.IsAbs(r.Dir) ||
		r.Changed < 0 || r.Bytes < 0 {
		return Record{}, ErrRecord
	}
	for _, dir := range r.Made {
		if !filepath.IsAbs(dir) || !mountinfo.Within(dir, r.Dir) {
			return Record{}, ErrRecord
		}
	}
	for _, d := range r.Redirects {
		if !filepath.IsLocal(d.Path) || d.Backing != filepath.Base(d.Backing) || !filepath.IsLocal(d.Backing) ||
			d.Backing == "." {
			return Record{}, ErrRecord
		}
	}
	return r, nil
}

// Base returns the base commit and base tree of the session. It returns ErrRecord if an ID is invalid, or if the IDs
// have different object formats.
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

// First returns where HEAD of a new git directory of the session is: the full name of the ref, which is "" or a tag if
// HEAD is detached, and the commit, which is "" if the branch has none.
func (r Record) First() (ref, commit string) {
	ref, commit = r.Ref, r.Commit
	if p := r.Checkpoint; p != nil && p.Branch+p.Head != "" { // earlier versions have not recorded them
		ref, commit = p.Branch, p.Head
	}
	if r.Fork.Head != nil {
		ref = r.Fork.Head.Ref()
	}
	return ref, commit
}

// FirstHead returns the result of First in the form of gitdir.Dir.HeadName: the short name of the branch or, if HEAD is
// detached, the commit.
func (r Record) FirstHead() string {
	ref, commit := r.First()
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		return branch
	}
	return commit
}

// SetBase sets the base commit and base tree of the session to those of a fetched snapshot.
func (r *Record) SetBase(s *fetch.Snapshot) {
	r.Ref, r.Format, r.Time = s.Ref, s.Format.String(), s.Time
	if !s.Commit.IsZero() {
		r.Commit, r.Tree = s.Commit.String(), s.Tree.String()
	}
}

// Save writes the record into the directory home. It replaces session.json by a new file, which is not synced to disk;
// SyncRecord does that.
func (r Record) Save(home string) error {
	r.Version = RecordVersion
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write session record: %w", err)
	}
	path := filepath.Join(home, RecordName)
	if err := disk.WriteFileUnsynced(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write session record: %w", err)
	}
	return nil
}

// SyncRecord syncs the record of a home and the directories above the record, so that the record survives a power
// failure.
func SyncRecord(home string) error {
	for _, path := range []string{filepath.Join(home, RecordName), home, filepath.Dir(home),
		filepath.Dir(filepath.Dir(home))} {
		f, err := os.Open(path)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return fmt.Errorf("write session record: %w", err)
		}
	}
	return nil
}

// HasOverlay reports whether programs may have written to the overlay in the directory home. It also returns true if
// the overlay cannot be examined.
func HasOverlay(home string) bool {
	if strings.HasPrefix(filepath.Base(home), NamelessPrefix) {
		return false // the overlay of a mount without a session contains only .git
	}
	// If the log is lost, the list of shares shows that contents were moved out of the overlay.
	for _, name := range []string{"log", "shares"} {
		if _, err := os.Lstat(filepath.Join(home, "overlay", name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	contents, err := os.ReadDir(filepath.Join(home, "overlay", "contents"))
	return len(contents) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// HasSessionRepo reports whether there is a session repository in the directory home. It also returns true if the home
// cannot be examined.
func HasSessionRepo(home string) bool {
	_, err := os.Lstat(filepath.Join(home, SessionRepoName))
	return !errors.Is(err, fs.ErrNotExist)
}

// NamelessPrefix is the prefix of the name of a home whose mount has no session. No session name begins with this
// prefix.
const NamelessPrefix = "_"

// ShortRef returns the name of a branch or tag without refs/heads/ or refs/tags/, and other names unchanged.
func ShortRef(name string) string {
	for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return short
		}
	}
	return name
}

// SessionRepoName is the name of the directory of the session repository in a home.
const SessionRepoName = "session.git"

// Checkpoint is the part of a record that identifies the checkpoint from which a session started, if it did not start
// from a commit.
type Checkpoint struct {
	ID     string    `json:"id"`               // id of the checkpoint
	Commit string    `json:"commit"`           // commit that stores the checkpoint
	Tree   string    `json:"tree"`             // tree of the checkpoint
	State  string    `json:"state"`            // commit that stores the checkpoint state
	Time   time.Time `json:"time"`             // time at which the checkpoint was made
	Branch string    `json:"branch,omitempty"` // full name of the ref that HEAD pointed to; "" if HEAD was detached
	Head   string    `json:"head,omitempty"`   // commit of HEAD; "" if the branch had no commit
	// From is the URL of the session remote of another session, from which contents of the checkpoint that are missing
	// on this host are fetched; "" if there is no such remote.
	From string `json:"from,omitempty"`

	Parent       string `json:"parent,omitempty"`        // session from which this session was forked
	ParentRemote string `json:"parent_remote,omitempty"` // session remote of Parent, as a URL without secrets
}

// ErrNoRecord means that a home has an overlay but no record.
var ErrNoRecord = errors.New(RecordName + " is missing although the overlay exists")

package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5/plumbing/format/config"
	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

var (
	// ErrRefMoved means that a ref did not have the object ID that a change expected, so that nothing was changed.
	ErrRefMoved = errors.New("ref has another value than expected")
	// ErrNoCheckpoint means that no checkpoint has the given name or ID.
	ErrNoCheckpoint = errors.New("no such checkpoint")
	// ErrAmbiguous means that several checkpoints have IDs that begin with the given text.
	ErrAmbiguous = errors.New("several checkpoint IDs have this prefix")
	// ErrReadOnly means that a Repo that was opened for reading only cannot be changed.
	ErrReadOnly = errors.New("repository is open read-only")
)

// RepoOptions contains the parameters of OpenRepo.
type RepoOptions struct {
	Format   object.Format // object format of the mounted remote
	Session  string        // name of the session
	Remote   string        // URL of the mounted remote, without secrets; "" if no remote can supply missing objects
	Borrow   []string      // objects directories of the store; git reads them through objects/info/alternates
	Fresh    []string      // objects directories of the mount's git directory; a Copier copies new objects from there
	ReadOnly bool          // open for reading only; OpenRepo then returns an error if the repository does not exist
	Log      *zap.Logger   // logger; nil disables logging
}

// Repo is the bare repository of a session. Several goroutines and several processes may use it at the same time. Each
// of its parts is a separate type: RefDir reads refs and refWriter changes them, sources reads objects, Lanes reads
// checkpoints, and maintenance joins and removes packs.
//
// Locks are acquired in this order: the locks of maintenance, refWriter.updating, the mutex of RefDir.
type Repo struct {
	*RefDir
	*sources
	*Lanes
	dir      string // path of the repository
	session  string // name of the session
	format   object.Format
	readOnly bool
	log      *zap.Logger // logger for repaired refs and failures
	refs     refWriter   // changes the refs
	packs    maintenance // joins packs and removes unreachable objects
}

// lockFile is the name of the file that processes of artifactfs lock by flock(2) while they change refs. The lock files
// that exclude git commands, such as packed-refs.lock, are hard links to this file.
const lockFile = "artifactfs.lock"

// OpenRepo opens the session repository in the directory dir, and creates it if it does not exist. If it exists,
// OpenRepo updates its configuration and its alternates. The caller must call Close.
func OpenRepo(dir string, o RepoOptions) (*Repo, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	r := &Repo{
		RefDir: NewRefDir(dir, o.Format), sources: newSources(dir, o), dir: dir, session: o.Session, format: o.Format,
		readOnly: o.ReadOnly, log: o.Log,
	}
	r.Lanes = &Lanes{refs: r.RefDir, objects: r.sources, session: o.Session, format: o.Format}
	r.refs.RefDir, r.refs.readOnly, r.refs.changed = r.RefDir, o.ReadOnly, make(chan struct{}, 1)
	r.packs.dir, r.packs.refs, r.packs.sources, r.packs.log = dir, r.RefDir, r.sources, o.Log
	if err := r.prepare(o); err != nil {
		return nil, fmt.Errorf("open session repository %s: %w", dir, err)
	}
	r.packs.tidying.ctx, r.packs.tidying.cancel = context.WithCancel(context.Background())
	return r, nil
}

// prepare creates the missing files and directories of the repository, and writes its configuration. It writes HEAD
// last: git does not accept a directory without HEAD as a repository, so git never uses a repository that a crash left
// incomplete.
func (r *Repo) prepare(o RepoOptions) error {
	head := filepath.Join(r.dir, "HEAD")
	if r.readOnly {
		_, err := os.Lstat(head)
		return err
	}
	for _, dir := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := r.configure(o); err != nil {
		return err
	}
	var alternates strings.Builder
	for _, b := range o.Borrow {
		alternates.WriteString(quoteAlternate(b) + "\n")
	}
	if err := writeChanged(filepath.Join(r.dir, "objects", "info", "alternates"),
		[]byte(alternates.String())); err != nil {
		return err
	}
	if _, err := os.Lstat(head); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.WriteFile(head, []byte("ref: refs/heads/main\n"), 0o644); err != nil {
		return err
	}
	// A new directory is durable only after a sync of its parent.
	for _, dir := range []string{"objects/info", "objects", "refs", ".", ".."} {
		if err := disk.OS.SyncDir(filepath.Join(r.dir, dir)); err != nil {
			return err
		}
	}
	return nil
}

// quoteAlternate returns the line for path in objects/info/alternates. git interprets a line that begins with a double
// quote as a quoted C string. So a path that begins with a double quote or contains a line feed is written as a quoted
// C string.
func quoteAlternate(path string) string {
	if !strings.HasPrefix(path, `"`) && !strings.ContainsRune(path, '\n') {
		return path
	}
	return gitcmd.Quote(path)
}

// configure writes the file config, and keeps settings that users have added to it. It configures the repository as a
// partial clone of the mounted remote, so that git fetches blobs of checkpoints that are missing on this host.
func (r *Repo) configure(o RepoOptions) error {
	name := filepath.Join(r.dir, "config")
	c := config.New()
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := config.NewDecoder(bytes.NewReader(text)).Decode(c); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	c.SetOption("core", "", "repositoryformatversion", "1").SetOption("core", "", "filemode", "true").SetOption("core", "",
		"bare", "true")
	if o.Format != object.SHA1 {
		c.SetOption("extensions", "", "objectFormat", o.Format.String())
	}
	if o.Remote != "" {
		c.SetOption("extensions", "", "partialClone", "origin").
			SetOption("remote", "origin", "url", o.Remote).
			SetOption("remote", "origin", "promisor", "true").
			SetOption("remote", "origin", "partialclonefilter", "blob:none")
	}
	// Disable the commit-graph. Otherwise git would read the commit-graph of the store, which names parents that are
	// missing on this host, and would ignore the list of SetShallow.
	c.SetOption("core", "", "commitGraph", "false")
	c.SetOption("uploadpack", "", "allowFilter", "true").SetOption("uploadpack", "", "allowAnySHA1InWant", "true").
		SetOption("gc", "", "auto", "0").SetOption("maintenance", "", "auto", "false").SetOption("receive", "",
		"autogc", "false")
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return writeChanged(name, b.Bytes())
}

// writeChanged replaces the contents of a file by text atomically, unless the file already has these contents.
func writeChanged(name string, text []byte) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return disk.WriteFile(name, text, 0o644)
}

// Close stops the background work that joins small packs, and closes all files. The Repo must not be used afterwards.
func (r *Repo) Close() error {
	r.packs.tidying.stop()
	return r.sources.close()
}

// Dir returns the path of the repository.
func (r *Repo) Dir() string { return r.dir }

// Session returns the name of the session.
func (r *Repo) Session() string { return r.session }

// Format returns the object format of the repository.
func (r *Repo) Format() object.Format { return r.format }

// Changed returns a channel that receives a token when Update has changed refs, except those that only keep restored
// trees on this host. The channel has room for one token: further updates before a receiver takes the token add no
// token.
func (r *Repo) Changed() <-chan struct{} { return r.refs.changed }

// Update makes all changes, each of a different ref, and syncs the refs to disk. If a ref does not have the expected
// object ID, it changes nothing and returns an error that wraps ErrRefMoved. After a crash during Update, some of the
// changes may have been made.
func (r *Repo) Update(ctx context.Context, changes []RefChange) error {
	return r.refs.updateAfter(ctx, changes, func() error { return nil })
}

// SetHead makes HEAD point to a branch, which need not exist. The parameter branch is the full name, such as
// refs/heads/main.
func (r *Repo) SetHead(branch string) error {
	if r.readOnly {
		return ErrReadOnly
	}
	if !strings.HasPrefix(branch, "refs/heads/") || !refname.Valid(branch) {
		return fmt.Errorf("set HEAD: invalid branch %q", branch)
	}
	return writeChanged(filepath.Join(r.dir, "HEAD"), []byte("ref: "+branch+"\n"))
}

// Shallow returns the commits whose parents are missing on this host; see "shallow" in gitrepository-layout(5).
func (r *Repo) Shallow() ([]object.ID, error) {
	text, err := os.ReadFile(filepath.Join(r.dir, "shallow"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ids, err := object.ParseLines(string(text))
	if err != nil {
		return nil, fmt.Errorf("read file shallow: %w", err)
	}
	return ids, nil
}

// SetShallow replaces the file shallow, which lists the commits whose parents are missing on this host. git treats
// these commits as if they had no parents.
func (r *Repo) SetShallow(ids []object.ID) error {
	if r.readOnly {
		return ErrReadOnly
	}
	name := filepath.Join(r.dir, "shallow")
	if len(ids) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return writeChanged(name, []byte(object.Lines(ids)))
}

// AddShallow adds ids to the list of commits whose parents are missing on this host. It takes no lock: of two
// concurrent calls, one may overwrite the additions of the other.
func (r *Repo) AddShallow(ids []object.ID) error {
	had, err := r.Shallow()
	if err != nil {
		return err
	}
	all := slices.Clone(had)
	for _, id := range ids {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	if len(all) == len(had) {
		return nil
	}
	return r.SetShallow(all)
}

// Write stores objects in one new pack and syncs the pack to disk. It leaves out objects that the repository's own
// packs already contain.
func (r *Repo) Write(ctx context.Context, objects []odb.Outgoing) error {
	settle, err := r.writeAhead(ctx, objects)
	if err != nil {
		return err
	}
	return settle()
}

// Record stores objects and then changes refs, as Write and Update do. It is faster, because it syncs the objects to
// disk while it waits for the locks of the refs. No ref changes before all objects are on disk.
func (r *Repo) Record(ctx context.Context, objects []odb.Outgoing, changes []RefChange) error {
	settle, err := r.writeAhead(ctx, objects)
	if err != nil {
		return err
	}
	// The objects are synced while updateAfter takes the locks of the refs.
	settled := make(chan error, 1)
	go func() { settled <- settle() }()
	wait := sync.OnceValue(func() error { return <-settled })
	err = r.refs.updateAfter(ctx, changes, wait)
	if last := wait(); err == nil {
		err = last
	}
	return err
}

// writeAhead writes objects to one new pack. The objects can be read when writeAhead returns, but they are safe on disk
// only when the returned function settle has returned nil.
func (r *Repo) writeAhead(ctx context.Context, objects []odb.Outgoing) (settle func() error, err error) {
	if r.readOnly {
		return nil, ErrReadOnly
	}
	s, err := r.own.packs()
	if err != nil {
		return nil, err
	}
	name, settle, err := s.WriteAhead(ctx, objects, odb.WriteOptions{})
	if err == nil && name != "" {
		r.packs.tidying.wrote(&r.packs)
	}
	return settle, err
}

// Packs returns the store of the repository's own packs. Objects that are fetched from a session remote are written to
// this store.
func (r *Repo) Packs() (*odb.Store, error) { return r.own.packs() }

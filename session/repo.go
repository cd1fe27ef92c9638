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

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

var (
	// ErrRefMoved reports that a ref did not have the value that a change of it expected. Nothing was changed.
	ErrRefMoved = errors.New("ref has moved")
	// ErrNoPoint reports that no checkpoint has that name.
	ErrNoPoint = errors.New("no such checkpoint")
	// ErrAmbiguous says that several checkpoints are called so.
	ErrAmbiguous = errors.New("several checkpoint IDs begin with that")
	// ErrReadOnly reports a change of a Repo that was opened for reading.
	ErrReadOnly = errors.New("repository is open for reading only")
)

// RepoOptions describe a Repo.
type RepoOptions struct {
	Format   object.Format
	Session  string
	Remote   string      // URL of the mounted remote, without secrets; "": there is none that promises objects
	Borrow   []string    // objects directories of the mounted remote, that git reads too: the store's
	Fresh    []string    // objects directories that are only read here, and of which what lasts is copied: the mount's git directory's
	ReadOnly bool        // nothing is written, made or locked; what is not there is an error
	Log      *zap.Logger // nil: no log
}

// Repo is a bare repository of a session. Any number of goroutines may use it, and other processes at the same time.
//
// Locks: maintaining > sweeping > updating > RefDir's. updating is held across disk operations, and with it the file
// lock that keeps out other processes of ours; git is kept out by its own lock files.
type Repo struct {
	*RefDir
	dir      string
	session  string
	format   object.Format
	readOnly bool
	log      *zap.Logger

	own    *place   // objects of the repository itself
	borrow []*place // those that the mounted remote can give again
	fresh  []*place

	updating sync.Mutex
	changed  chan struct{}

	sweeping sync.RWMutex // see Working

	maintaining sync.Mutex
	tidying     tidying
}

// name of the file whose lock is held while refs are moved; git's lock files are links to it.
const lockFile = "artifactfs.lock"

// OpenRepo opens the repository at dir, and makes it if it is missing. The caller closes it.
func OpenRepo(dir string, o RepoOptions) (*Repo, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	r := &Repo{RefDir: NewRefDir(dir, o.Format), dir: dir, session: o.Session, format: o.Format, readOnly: o.ReadOnly, log: o.Log, changed: make(chan struct{}, 1)}
	if err := r.prepare(o); err != nil {
		return nil, fmt.Errorf("open session repository %s: %w", dir, err)
	}
	r.own = newPlace(filepath.Join(dir, "objects"), o.Format)
	for _, b := range o.Borrow {
		r.borrow = append(r.borrow, newPlace(b, o.Format))
	}
	for _, f := range o.Fresh {
		r.fresh = append(r.fresh, newPlace(f, o.Format))
	}
	r.tidying.ctx, r.tidying.cancel = context.WithCancel(context.Background())
	return r, nil
}

// prepare makes what is not there. HEAD comes last: git takes it for a repository then.
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
	if err := writeChanged(filepath.Join(r.dir, "objects", "info", "alternates"), []byte(alternates.String())); err != nil {
		return err
	}
	if _, err := os.Lstat(head); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.WriteFile(head, []byte("ref: refs/heads/main\n"), 0o644); err != nil {
		return err
	}
	for _, dir := range []string{"objects/info", "objects", "refs", ".", ".."} {
		if err := disk.OS.SyncDir(filepath.Join(r.dir, dir)); err != nil {
			return err
		}
	}
	return nil
}

// quoteAlternate writes a path as git reads it in objects/info/alternates: in C's quotes if it begins with one.
func quoteAlternate(path string) string {
	if !strings.HasPrefix(path, `"`) && !strings.ContainsRune(path, '\n') {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}

// configure writes the configuration, of which what users set stays. It is that of a partial clone of the mounted remote:
// the trees of checkpoints name blobs that nobody has looked at yet.
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
	c.SetOption("core", "", "repositoryformatversion", "1").SetOption("core", "", "filemode", "true").SetOption("core", "", "bare", "true")
	if o.Format != object.SHA1 {
		c.SetOption("extensions", "", "objectFormat", o.Format.String())
	}
	if o.Remote != "" {
		c.SetOption("extensions", "", "partialClone", "origin").
			SetOption("remote", "origin", "url", o.Remote).
			SetOption("remote", "origin", "promisor", "true").
			SetOption("remote", "origin", "partialclonefilter", "blob:none")
	}
	// The store's commit-graph tells of parents that are not here (see SetShallow).
	c.SetOption("core", "", "commitGraph", "false")
	c.SetOption("uploadpack", "", "allowFilter", "true").SetOption("uploadpack", "", "allowAnySHA1InWant", "true").
		SetOption("gc", "", "auto", "0").SetOption("maintenance", "", "auto", "false").SetOption("receive", "", "autogc", "false")
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return writeChanged(name, b.Bytes())
}

// writeChanged writes a file if it does not hold that already.
func writeChanged(name string, text []byte) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return disk.WriteFile(name, text, 0o644)
}

// Close waits for background work and closes all files.
func (r *Repo) Close() error {
	r.tidying.stop()
	err := r.own.close()
	for _, p := range r.borrow {
		err = errors.Join(err, p.close())
	}
	for _, p := range r.fresh {
		err = errors.Join(err, p.close())
	}
	return err
}

// Dir returns the directory of the repository.
func (r *Repo) Dir() string { return r.dir }

// Session returns the name of the session.
func (r *Repo) Session() string { return r.session }

// Format returns the object format.
func (r *Repo) Format() object.Format { return r.format }

// Changed holds one token after Update has moved refs.
func (r *Repo) Changed() <-chan struct{} { return r.changed }

// SetHead makes HEAD name a branch, by its full name.
func (r *Repo) SetHead(branch string) error {
	if r.readOnly {
		return ErrReadOnly
	}
	if !strings.HasPrefix(branch, "refs/heads/") || !refname.Valid(branch) {
		return fmt.Errorf("set HEAD: %q is no branch", branch)
	}
	return writeChanged(filepath.Join(r.dir, "HEAD"), []byte("ref: "+branch+"\n"))
}

// Shallow returns the commits whose parents are not on this host (gitrepository-layout(5), "shallow").
func (r *Repo) Shallow() ([]object.ID, error) {
	text, err := os.ReadFile(filepath.Join(r.dir, "shallow"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []object.ID
	for line := range strings.Lines(string(text)) {
		id, err := object.ParseIDOf(r.format, strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("read shallow: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// SetShallow replaces the list of commits whose parents are not on this host.
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
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(id.String() + "\n")
	}
	return writeChanged(name, []byte(text.String()))
}

// AddShallow adds to the list of commits whose parents are not on this host.
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

// Write stores objects in one pack and syncs it. It leaves out those that the repository owns already.
func (r *Repo) Write(ctx context.Context, objects []odb.Outgoing) error {
	settle, err := r.writeAhead(ctx, objects)
	if err != nil {
		return err
	}
	return settle()
}

// Record is Write and then Update, with fewer waits for the disk. The refs move when all objects are there.
func (r *Repo) Record(ctx context.Context, objects []odb.Outgoing, changes []RefChange) error {
	settle, err := r.writeAhead(ctx, objects)
	if err != nil {
		return err
	}
	settled := make(chan error, 1)
	go func() { settled <- settle() }()
	wait := sync.OnceValue(func() error { return <-settled })
	err = r.updateAfter(ctx, changes, wait)
	if last := wait(); err == nil {
		err = last
	}
	return err
}

// writeAhead is Write as of odb.Store.WriteAhead.
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
		r.tidying.wrote(r)
	}
	return settle, err
}

// Packs returns the repository's own store of packs, for fetches from a session remote.
func (r *Repo) Packs() (*odb.Store, error) { return r.own.packs() }

package session

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

var (
	// ErrRefMoved says that a ref was not what a change of it expected. Nothing of that change was made.
	ErrRefMoved = errors.New("ref has moved")
	// ErrNoPoint says that nothing is called so.
	ErrNoPoint = errors.New("no such point")
	// ErrAmbiguous says that several points are called so.
	ErrAmbiguous = errors.New("several points begin with that")
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

// RefChange moves a ref.
type RefChange struct {
	Name  string
	Old   object.ID // that it has now; zero: it is not there
	New   object.ID // zero: it goes
	Force bool      // whatever it is now
}

// Repo is a bare repository of a session.
type Repo struct {
	dir string
}

// OpenRepo opens the repository at dir, or makes it.
func OpenRepo(dir string, o RepoOptions) (*Repo, error) { return nil, errors.ErrUnsupported }

// Close ends what goes on in the background and lets go of all files.
func (r *Repo) Close() error { return nil }

// Dir is where the repository is.
func (r *Repo) Dir() string { return r.dir }

// Session is whose it is.
func (r *Repo) Session() string { return "" }

// Format is that of its objects.
func (r *Repo) Format() object.Format { return 0 }

// Refs lists the refs whose names begin with prefix, sorted by name, as stock git sees them; without HEAD.
func (r *Repo) Refs(prefix string) ([]packedrefs.Ref, error) { return nil, nil }

// Ref is what a ref names; zero: it is not there.
func (r *Repo) Ref(name string) (object.ID, error) { return object.ID{}, nil }

// Update makes all changes, each of another ref, durably, or none: ErrRefMoved. Who dies meanwhile may leave some of them.
func (r *Repo) Update(ctx context.Context, changes []RefChange) error { return errors.ErrUnsupported }

// SetHead makes HEAD name a branch, by its full name.
func (r *Repo) SetHead(branch string) error { return errors.ErrUnsupported }

// Changed is told whenever refs were moved by Update; it holds one sign.
func (r *Repo) Changed() <-chan struct{} { return nil }

// Write keeps objects as one pack, durably. Those that it owns already are left out.
func (r *Repo) Write(ctx context.Context, objects []odb.Outgoing) error { return errors.ErrUnsupported }

// Owned says whether the repository holds an object itself.
func (r *Repo) Owned(id object.ID) bool { return false }

// Get gives an object's content, owned or borrowed, like odb.Store.Get.
func (r *Repo) Get(id object.ID, limit int64) (object.Type, []byte, error) {
	return 0, nil, errors.ErrUnsupported
}

// Size gives an object's type and size.
func (r *Repo) Size(id object.ID) (object.Type, int64, error) { return 0, 0, errors.ErrUnsupported }

// Tree reads a tree.
func (r *Repo) Tree(id object.ID) ([]object.TreeEntry, error) { return nil, errors.ErrUnsupported }

// Commit reads a commit.
func (r *Repo) Commit(id object.ID) (object.CommitInfo, error) {
	return object.CommitInfo{}, errors.ErrUnsupported
}

// Points lists the points of all lanes, newest first, at most limit of them; 0: all.
func (r *Repo) Points(limit int) ([]Point, error) { return nil, errors.ErrUnsupported }

// PointAt reads the point that a commit is.
func (r *Repo) PointAt(commit object.ID) (Point, error) { return Point{}, errors.ErrUnsupported }

// Find gives the point that is called name: a PointID or the beginning of one, a pin, "@" for the newest, or "@~N" for the Nth before it.
func (r *Repo) Find(name string) (Point, error) { return Point{}, errors.ErrUnsupported }

// Pins gives the names of the points that are kept, by their ids.
func (r *Repo) Pins() (map[PointID][]string, error) { return nil, errors.ErrUnsupported }

// State reads what git had beside the files of a point.
func (r *Repo) State(p Point) (State, error) { return State{}, errors.ErrUnsupported }

// SetShallow records the commits whose parents are not here.
func (r *Repo) SetShallow(ids []object.ID) error { return errors.ErrUnsupported }

// Shallow lists them.
func (r *Repo) Shallow() ([]object.ID, error) { return nil, errors.ErrUnsupported }

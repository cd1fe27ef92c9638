package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
)

// maxLinks is how many refs may name each other, as in git.
const maxLinks = 5

// RefDir reads the refs of a git directory, this package's or the user's.
type RefDir struct {
	dir    string
	format object.Format
	packed packedCache
}

// NewRefDir returns the refs of the git directory dir.
func NewRefDir(dir string, f object.Format) *RefDir { return &RefDir{dir: dir, format: f} }

// Head returns the ref that HEAD names, "" if it is detached, and its commit, zero if that is not born.
func (r *RefDir) Head() (branch string, id object.ID, err error) {
	id, branch, err = r.loose("HEAD")
	if err == nil && branch != "" {
		id, err = r.Ref(branch)
	}
	return branch, id, err
}

// ErrBroken reports a ref whose file holds nothing that git writes.
var ErrBroken = errors.New("broken ref")

// packedCache is what packed-refs held when it was read.
type packedCache struct {
	mu   sync.Mutex
	stat fs.FileInfo
	refs []packedrefs.Ref // sorted by name
}

// packedRefs reads packed-refs, if it is another than before.
func (r *RefDir) packedRefs() ([]packedrefs.Ref, error) {
	name := filepath.Join(r.dir, "packed-refs")
	c := &r.packed
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		c.stat, c.refs = nil, nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if c.stat != nil && os.SameFile(st, c.stat) && st.ModTime().Equal(c.stat.ModTime()) && st.Size() == c.stat.Size() {
		return c.refs, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(refs, func(a, b packedrefs.Ref) int { return strings.Compare(a.Name, b.Name) })
	c.stat, c.refs = st, refs
	return refs, nil
}

// loose reads the file of a ref: an id, or the name of another ref; neither if there is none.
func (r *RefDir) loose(name string) (id object.ID, link string, err error) {
	text, err := os.ReadFile(filepath.Join(r.dir, filepath.FromSlash(name)))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR):
		return object.ID{}, "", nil
	case err != nil:
		return object.ID{}, "", err
	}
	line := strings.TrimRight(string(text), "\n\r\t ")
	if link, ok := strings.CutPrefix(line, "ref:"); ok {
		return object.ID{}, strings.TrimLeft(link, " \t"), nil
	}
	if id, err = object.ParseIDOf(r.format, line); err != nil {
		return object.ID{}, "", fmt.Errorf("read ref %s: %w: %w", name, ErrBroken, err)
	}
	return id, "", nil
}

// Ref returns the value of a ref; zero: it does not exist.
func (r *RefDir) Ref(name string) (object.ID, error) {
	for range maxLinks {
		if !refname.Valid(name) {
			return object.ID{}, fmt.Errorf("read ref: %.80q is no name of one", name)
		}
		id, link, err := r.loose(name)
		if err != nil || !id.IsZero() {
			return id, err
		}
		if link == "" {
			if id, err = r.inPacked(name); err != nil || !id.IsZero() {
				return id, err
			}
			// It may have become a file between the two looks, or the other way round.
			if id, link, err = r.loose(name); err != nil || link == "" {
				return id, err
			}
		}
		name = link
	}
	return object.ID{}, fmt.Errorf("read ref %s: %w", name, syscall.ELOOP)
}

func (r *RefDir) inPacked(name string) (object.ID, error) {
	packed, err := r.packedRefs()
	if err != nil {
		return object.ID{}, err
	}
	i, ok := slices.BinarySearchFunc(packed, name, func(p packedrefs.Ref, name string) int { return strings.Compare(p.Name, name) })
	if !ok {
		return object.ID{}, nil
	}
	return packed[i].ID, nil
}

// Refs returns the refs whose names begin with prefix, sorted by name, as stock git sees them; without HEAD, and without
// broken ones.
func (r *RefDir) Refs(prefix string) ([]packedrefs.Ref, error) {
	refs, _, err := r.AllRefs(prefix)
	return refs, err
}

// AllRefs lists refs as Refs does, and the names of those that are broken: their files hold nothing that git writes, as a
// power cut leaves them. What these name is not known, but nobody has removed them.
func (r *RefDir) AllRefs(prefix string) (refs []packedrefs.Ref, broken []string, _ error) {
	found := map[string]packedrefs.Ref{}
	// First the files: what is packed in between is found in the other place then.
	var links []string
	root := filepath.Join(r.dir, "refs")
	start := filepath.Join(r.dir, filepath.FromSlash(path.Dir(prefix+"x"))) // nothing outside of it begins so
	if !strings.HasPrefix(prefix, "refs/") {
		start = root
	}
	err := filepath.WalkDir(start, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.dir, file)
		name := filepath.ToSlash(rel)
		if err != nil || d.IsDir() || !strings.HasPrefix(name, prefix) || !refname.Valid(name) {
			return err
		}
		id, link, err := r.loose(name)
		switch {
		case errors.Is(err, ErrBroken): // what packed-refs has is older
			broken = append(broken, name)
		case err != nil:
			return err
		case link != "":
			links = append(links, name)
		case !id.IsZero():
			found[name] = packedrefs.Ref{Name: name, ID: id}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list refs: %w", err)
	}
	packed, err := r.packedRefs()
	if err != nil {
		return nil, nil, fmt.Errorf("list refs: %w", err)
	}
	for _, p := range packed {
		if _, ok := found[p.Name]; !ok && strings.HasPrefix(p.Name, prefix) && !slices.Contains(links, p.Name) && !slices.Contains(broken, p.Name) {
			found[p.Name] = p
		}
	}
	for _, name := range links {
		if id, err := r.Ref(name); err == nil && !id.IsZero() {
			found[name] = packedrefs.Ref{Name: name, ID: id}
		}
	}
	refs = make([]packedrefs.Ref, 0, len(found))
	for _, ref := range found {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b packedrefs.Ref) int { return strings.Compare(a.Name, b.Name) })
	return refs, broken, nil
}

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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// maxLinks is the maximum number of symbolic refs that are followed to find the id of a ref. Git has the same limit.
const maxLinks = 5

// RefDir reads the refs of a git directory: of a Repo, or of a mount. It reads both loose and packed refs. It is safe
// for concurrent use.
type RefDir struct {
	dir    string // path of the git directory
	format object.Format
	packed packedCache // contents of the file packed-refs when it was last read
}

// NewRefDir returns a RefDir that reads the refs of the git directory dir.
func NewRefDir(dir string, f object.Format) *RefDir { return &RefDir{dir: dir, format: f} }

// Head returns the full name of the ref to which HEAD points, and the commit of HEAD. branch is "" if HEAD is detached;
// id is zero if the branch has no commit.
func (r *RefDir) Head() (branch string, id object.ID, err error) {
	id, branch, err = r.loose("HEAD")
	if err == nil && branch != "" {
		id, err = r.Ref(branch)
	}
	return branch, id, err
}

// ErrBroken means that the file of a ref contains neither an object ID nor the name of another ref, for example after a
// power failure.
var ErrBroken = errors.New("ref is broken")

// packedCache holds the parsed file packed-refs. stat describes the version of the file that was parsed.
type packedCache struct {
	mu   sync.Mutex // protects stat and refs
	stat fs.FileInfo
	refs []packedrefs.Ref // refs in packed-refs, sorted by name
}

// packedRefs returns the refs in the file packed-refs, sorted by name. It reads the file again only if its inode, size
// or modification time has changed.
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
	text, err := disk.ReadRegular(name, disk.LargeFile)
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

// loose reads the file of a loose ref. It returns the object ID in the file or, if the ref is symbolic, the name of the
// ref to which it points as link. Both results are empty if the file does not exist.
func (r *RefDir) loose(name string) (id object.ID, link string, err error) {
	text, err := disk.ReadRegular(filepath.Join(r.dir, filepath.FromSlash(name)), disk.SmallFile)
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

// Ref returns the object ID of a ref. It follows symbolic refs. The ID is zero if the ref does not exist.
func (r *RefDir) Ref(name string) (object.ID, error) {
	for range maxLinks {
		if !refname.Valid(name) {
			return object.ID{}, fmt.Errorf("read ref: invalid ref name %.80q", name)
		}
		id, link, err := r.loose(name)
		if err != nil || !id.IsZero() {
			return id, err
		}
		if link == "" {
			if id, err = r.inPacked(name); err != nil || !id.IsZero() {
				return id, err
			}
			// The ref may have been packed or unpacked by git between the two reads, so read the file again.
			if id, link, err = r.loose(name); err != nil || link == "" {
				return id, err
			}
		}
		name = link
	}
	return object.ID{}, fmt.Errorf("read ref %s: %w", name, syscall.ELOOP)
}

// inPacked returns the object ID of a ref in the file packed-refs, or the zero ID if the file does not contain the ref.
func (r *RefDir) inPacked(name string) (object.ID, error) {
	packed, err := r.packedRefs()
	if err != nil {
		return object.ID{}, err
	}
	i, ok := slices.BinarySearchFunc(packed, name,
		func(p packedrefs.Ref, name string) int { return strings.Compare(p.Name, name) })
	if !ok {
		return object.ID{}, nil
	}
	return packed[i].ID, nil
}

// Refs returns the refs whose names begin with prefix, sorted by name, with the object IDs that git reads, too. It
// leaves out HEAD and broken refs.
func (r *RefDir) Refs(prefix string) ([]packedrefs.Ref, error) {
	refs, _, err := r.AllRefs(prefix)
	return refs, err
}

// AllRefs returns the refs whose names begin with prefix, as Refs does, and the names of broken refs: refs whose files
// contain no valid value, for example after a power failure.
func (r *RefDir) AllRefs(prefix string) (refs []packedrefs.Ref, broken []string, _ error) {
	found := map[string]packedrefs.Ref{}
	// Read loose refs before packed refs: git pack-refs writes a ref to packed-refs before it removes the file of the
	// loose ref, so no ref is missed.
	var links []string
	root := filepath.Join(r.dir, "refs")
	// directory of all names that begin with prefix
	start := filepath.Join(r.dir, filepath.FromSlash(path.Dir(prefix+"x")))
	if !strings.HasPrefix(prefix, "refs/") {
		start = root
	}
	err := filepath.WalkDir(start, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the ref was removed since it was listed
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
		case errors.Is(err, ErrBroken): // packed-refs may contain an older value of the ref, which must not be used
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
		if _, ok := found[p.Name]; !ok && strings.HasPrefix(p.Name, prefix) && !slices.Contains(links, p.Name) &&
			!slices.Contains(broken, p.Name) {
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

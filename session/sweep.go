package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// packTable describes a pack of the repository, with a mark for each object that is reachable.
type packTable struct {
	path string // path of the pack's files without their suffixes
	size int64  // size of the .pack file in bytes
	// promised states that the pack has a .promisor file: the session remote has all objects of the pack, and they may
	// refer to objects that are missing on this host.
	promised bool
	kept     bool       // whether the pack has a .keep file, which states that git must not remove it
	index    *odb.Index // IDs of the pack's objects
	live     []bool     // whether each object is reachable, in the order of the objects in index
}

// parsePackTable parses the contents of an .idx file.
func parsePackTable(f object.Format, text []byte) (t packTable, err error) {
	if t.index, err = odb.ParseIndex(text, f); err == nil {
		t.live = make([]bool, t.index.Len())
	}
	return t, err
}

// dead returns the number of objects that are not reachable.
func (t *packTable) dead() (n int) {
	for _, l := range t.live {
		if !l {
			n++
		}
	}
	return n
}

// marking finds the objects that are reachable from refs, and marks those in packs. Loose objects have no marks, but
// objects that are reachable from them are marked.
type marking struct {
	repo  *maintenance
	packs []*packTable // packs of the repository
	loose bool         // the repository has loose objects
	stack []object.ID  // reachable objects that were not read yet
}

// readTables reads the index files of all packs of the repository itself.
func (m *maintenance) readTables() ([]*packTable, error) {
	names, err := disk.Glob(filepath.Join(m.sources.own.dir, "pack"), "pack-*.idx")
	if err != nil {
		return nil, err
	}
	var all []*packTable
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a concurrent repack has removed the pack
		}
		if err != nil {
			return nil, err
		}
		t, err := parsePackTable(m.sources.format, text)
		if err != nil {
			return nil, fmt.Errorf("read pack index %s: %w", name, err)
		}
		t.path = strings.TrimSuffix(name, ".idx")
		st, err := os.Stat(t.path + ".pack")
		if err != nil {
			return nil, err
		}
		t.size, t.promised, t.kept = st.Size(), exists(t.path+".promisor"), exists(t.path+".keep")
		all = append(all, &t)
	}
	return all, nil
}

// exists reports whether a file exists.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// add marks the object id as reachable. It puts the object on the stack, unless the object is a blob, was marked
// before, or is not in this repository.
func (m *marking) add(id object.ID, blob bool) {
	here, new := false, false
	// An object may be in several packs. Mark all copies, so that no pack is rewritten because of an unmarked copy.
	for _, t := range m.packs {
		if i, ok := t.index.Position(id); ok {
			here, new = true, new || !t.live[i]
			t.live[i] = true
		}
	}
	switch {
	case blob || here && !new:
	case here:
		m.stack = append(m.stack, id)
	case m.loose && exists(filepath.Join(m.repo.sources.own.dir, id.String()[:2], id.String()[2:])):
		m.stack = append(m.stack, id)
	}
}

// refs marks all objects that are reachable from the refs and from HEAD, which may be detached. It returns an error
// that wraps ErrBroken if a ref is broken.
func (m *marking) refs(ctx context.Context) error {
	refs, broken, err := m.repo.refs.AllRefs("")
	if err != nil {
		return err
	}
	if len(broken) > 0 { // otherwise sweep would remove the objects that are reachable only from broken refs
		return fmt.Errorf("read ref %s: %w", broken[0], ErrBroken)
	}
	_, head, err := m.repo.refs.Head()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		m.add(ref.ID, false)
	}
	if !head.IsZero() {
		m.add(head, false)
	}
	seen := map[object.ID]bool{} // loose objects have no mark in a packTable
	for len(m.stack) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		if err := m.below(id); err != nil {
			return fmt.Errorf("find objects below %s: %w", id, err)
		}
	}
	return nil
}

// below marks the objects to which the object id refers. It leaves out the commits of submodules, which are in other
// repositories.
func (m *marking) below(id object.ID) error {
	f := m.repo.sources.format
	t, _, err := m.repo.sources.Size(id)
	if err != nil || t == object.Blob {
		return err
	}
	_, content, err := m.repo.sources.Get(id, object.MaxTreeSize)
	if err != nil {
		return err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(f, content)
		if err != nil {
			return err
		}
		m.add(info.Tree, false)
		for _, p := range info.Parents {
			m.add(p, false)
		}
	case object.Tree:
		entries, _, err := object.ReadTree(f, content)
		if err != nil {
			return err
		}
		for _, e := range entries {
			// The commit of a submodule is in another repository.
			if e.Mode != object.ModeGitlink {
				m.add(e.ID, e.Mode != object.ModeDir)
			}
		}
	case object.Tag:
		target, _, err := object.ParseTagTarget(f, content)
		if err != nil {
			return err
		}
		m.add(target, false)
	}
	return nil
}

// sweep removes the packs that contain unreachable objects, after it has copied their reachable objects to a new pack.
// It returns the number of freed bytes. It does not remove loose objects, which only git itself writes.
func (m *maintenance) sweep(ctx context.Context) (freed int64, err error) {
	m.maintaining.Lock()
	defer m.maintaining.Unlock()
	live := &marking{repo: m}
	if live.packs, err = m.readTables(); err != nil {
		return 0, err
	}
	loose, err := disk.Glob(m.sources.own.dir, "[0-9a-f][0-9a-f]")
	if err != nil {
		return 0, err
	}
	live.loose = len(loose) > 0
	if err := live.refs(ctx); err != nil {
		return 0, err
	}
	old, wanted := live.wasteful()
	if len(old) == 0 {
		return 0, nil
	}
	fresh, err := m.repack(ctx, wanted)
	if err != nil {
		return 0, err
	}
	// While sweeping is locked, callers of Working wait, so artifactfs adds no objects. Refs that were added since the
	// first search may point to objects that were not copied, so search all refs again.
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	if err := live.addNewPacks(fresh); err != nil {
		return 0, err
	}
	if err := live.refs(ctx); err != nil {
		return 0, err
	}
	old = slices.DeleteFunc(old, func(t *packTable) bool { return t.path == fresh || !live.spare(t, old, wanted) })
	for _, t := range old {
		freed += t.size
	}
	// Subtract the size of the new pack from the freed space, unless git has rewritten a pack that existed before.
	existed := slices.ContainsFunc(live.packs, func(t *packTable) bool { return t.path == fresh })
	if st, err := os.Stat(fresh + ".pack"); err == nil && !existed {
		freed -= st.Size()
	}
	if err := m.removePacks(old); err != nil {
		return 0, err
	}
	return max(0, freed), nil
}

// addNewPacks adds the packs that were written after m.packs was read. It leaves out the pack with the path but,
// because it contains only copies of objects in other packs.
func (m *marking) addNewPacks(but string) error {
	now, err := m.repo.readTables()
	if err != nil {
		return err
	}
	for _, t := range now {
		if t.path != but && !slices.ContainsFunc(m.packs, func(o *packTable) bool { return o.path == t.path }) {
			m.packs = append(m.packs, t)
		}
	}
	return nil
}

// wasteful returns the packs that are to be removed, and the reachable objects in them, which have to be copied first.
// A pack with a .promisor file is removed only if none of its objects is reachable: its objects must not be copied to
// an ordinary pack, because git permits references to missing objects only in packs with a .promisor file.
func (m *marking) wasteful() (old []*packTable, wanted map[object.ID]bool) {
	wanted = map[object.ID]bool{}
	for _, t := range m.packs {
		dead := t.dead()
		if t.kept || dead == 0 || t.promised && dead < len(t.live) {
			continue
		}
		old = append(old, t)
		for i, live := range t.live {
			if live {
				id, err := t.index.ID(i)
				if err == nil {
					wanted[id] = true
				}
			}
		}
	}
	return old, wanted
}

// spare reports whether the pack t can be removed, because every reachable object of t is also in another pack that
// remains. packed is the set of the objects in the new pack, and old are the packs that are to be removed.
func (m *marking) spare(t *packTable, old []*packTable, packed map[object.ID]bool) bool {
	for i, live := range t.live {
		if !live {
			continue
		}
		id, err := t.index.ID(i)
		if err != nil {
			return false
		}
		elsewhere := packed[id]
		for _, o := range m.packs {
			if !elsewhere && !slices.Contains(old, o) {
				_, elsewhere = o.index.Position(id)
			}
		}
		if !elsewhere {
			return false
		}
	}
	return true
}

// repack writes the objects wanted to a new pack by git pack-objects. It returns the path of the pack without a suffix,
// or "" if wanted is empty.
func (m *maintenance) repack(ctx context.Context, wanted map[object.ID]bool) (path string, err error) {
	if len(wanted) == 0 {
		return "", nil
	}
	base := filepath.Join(m.sources.own.dir, "pack", "pack")
	git := gitcmd.Repo{Dir: m.dir, Options: []string{"-c", "core.hooksPath=" + os.DevNull}, Env: []string{gitcmd.NoFetch}}
	list := object.Lines(slices.Collect(maps.Keys(wanted)))
	out, err := git.Output(ctx, list, "pack-objects", "-q", "--threads=1", "--delta-base-offset", base)
	if err != nil {
		return "", err
	}
	path = base + "-" + strings.TrimSpace(string(out))
	if !exists(path+".pack") || !exists(path+".idx") {
		return "", fmt.Errorf("run git pack-objects: no pack %s was written: %w", path, fs.ErrNotExist)
	}
	return path, disk.OS.SyncDir(filepath.Dir(path))
}

// removePacks removes the given packs. It removes the multi-pack-index and the .idx files first, because readers find
// packs through these files. A process that has opened the files of a pack can still read them.
func (m *maintenance) removePacks(old []*packTable) error {
	dir := filepath.Join(m.sources.own.dir, "pack")
	if err := os.Remove(filepath.Join(dir, "multi-pack-index")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A crash between the two steps leaves .pack files without .idx files, which git ignores.
	for _, suffixes := range [][]string{{".idx"}, {".pack", ".rev", ".bitmap", ".promisor", ".mtimes"}} {
		for _, t := range old {
			for _, suffix := range suffixes {
				if err := os.Remove(t.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		if err := disk.OS.SyncDir(dir); err != nil {
			return err
		}
	}
	s, err := m.sources.own.packs()
	if errors.Is(err, odb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Refresh()
}

// PackIDs returns the IDs of all objects in a pack. The parameter index is the contents of the pack's .idx file.
func PackIDs(f object.Format, index []byte) ([]object.ID, error) {
	t, err := parsePackTable(f, index)
	if err != nil {
		return nil, err
	}
	ids := make([]object.ID, 0, len(t.live))
	for i := range t.live {
		id, err := t.index.ID(i)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

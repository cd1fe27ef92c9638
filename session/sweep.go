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

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// packTable is the table of a pack's objects.
type packTable struct {
	path     string // of its files, without what follows the dot
	size     int64  // of the file of objects, in bytes
	promised bool   // it can be had again from the session remote, and may lack what its objects name
	kept     bool   // somebody wants it to stay
	index    *odb.Index
	live     []bool // by position in index
}

// parsePackTable reads the ids of a pack's index.
func parsePackTable(f object.Format, text []byte) (t packTable, err error) {
	if t.index, err = odb.ParseIndex(text, f); err == nil {
		t.live = make([]bool, t.index.Len())
	}
	return t, err
}

// dead counts the objects that nothing names.
func (t *packTable) dead() (n int) {
	for _, l := range t.live {
		if !l {
			n++
		}
	}
	return n
}

// marking finds what refs lead to.
type marking struct {
	repo  *Repo
	packs []*packTable
	loose bool // there are objects in files of their own
	stack []object.ID
}

// readTables lists the repository's own packs.
func (r *Repo) readTables() ([]*packTable, error) {
	names, err := filepath.Glob(filepath.Join(r.own.dir, "pack", "pack-*.idx"))
	if err != nil {
		return nil, err
	}
	var all []*packTable
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // packed anew meanwhile
		}
		if err != nil {
			return nil, err
		}
		t, err := parsePackTable(r.format, text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
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

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// add has an object looked at, if it was not yet and is here. Of a blob nothing has to be read.
func (m *marking) add(id object.ID, blob bool) {
	here, new := false, false
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
	case m.loose && exists(filepath.Join(m.repo.own.dir, id.String()[:2], id.String()[2:])):
		m.stack = append(m.stack, id)
	}
}

// refs marks what all refs name, and HEAD, which may be detached.
func (m *marking) refs(ctx context.Context) error {
	refs, broken, err := m.repo.AllRefs("")
	if err != nil {
		return err
	}
	if len(broken) > 0 { // what they led to would be taken for nobody's
		return fmt.Errorf("ref %s: %w", broken[0], ErrBroken)
	}
	_, head, err := m.repo.Head()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		m.add(ref.ID, false)
	}
	if !head.IsZero() {
		m.add(head, false)
	}
	seen := map[object.ID]bool{} // loose ones have no mark
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
			return fmt.Errorf("follow %s: %w", id, err)
		}
	}
	return nil
}

// below marks what an object names.
func (m *marking) below(id object.ID) error {
	f := m.repo.format
	t, _, err := m.repo.Size(id)
	if err != nil || t == object.Blob {
		return err
	}
	_, content, err := m.repo.Get(id, object.MaxTreeSize)
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
		entries, err := object.ParseTree(f, content)
		if err != nil {
			return err
		}
		for _, e := range entries {
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

// Sweep removes what no ref leads to from the repository's own packs, and returns how many bytes became free.
func (r *Repo) Sweep(ctx context.Context) (freed int64, err error) {
	if freed, err = r.sweep(ctx); err != nil {
		return freed, fmt.Errorf("remove what nothing names from %s: %w", r.dir, err)
	}
	return freed, nil
}

// sweep removes packs that hold what nothing names, of which the rest is packed anew first. What is in files of their own
// was put there by stock git, and is left to it.
func (r *Repo) sweep(ctx context.Context) (freed int64, err error) {
	r.maintaining.Lock()
	defer r.maintaining.Unlock()
	m := &marking{repo: r}
	if m.packs, err = r.readTables(); err != nil {
		return 0, err
	}
	m.loose = len(looseDirs(r.own.dir)) > 0
	if err := m.refs(ctx); err != nil {
		return 0, err
	}
	old, wanted := m.wasteful()
	if len(old) == 0 {
		return 0, nil
	}
	fresh, err := r.repack(ctx, wanted)
	if err != nil {
		return 0, err
	}
	// From here on nobody writes. What refs name now that they did not before is not in what was packed anew.
	r.sweeping.Lock()
	defer r.sweeping.Unlock()
	if err := m.takeUp(fresh); err != nil {
		return 0, err
	}
	if err := m.refs(ctx); err != nil {
		return 0, err
	}
	old = slices.DeleteFunc(old, func(t *packTable) bool { return t.path == fresh || !m.spare(t, old, wanted) })
	for _, t := range old {
		freed += t.size
	}
	if st, err := os.Stat(fresh + ".pack"); err == nil && !slices.ContainsFunc(m.packs, func(t *packTable) bool { return t.path == fresh }) {
		freed -= st.Size()
	}
	if err := r.removePacks(old); err != nil {
		return 0, err
	}
	return max(0, freed), nil
}

// takeUp adds the packs that were written since, but for one that holds only what others do.
func (m *marking) takeUp(but string) error {
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

// looseDirs lists directories of objects in files of their own.
func looseDirs(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "[0-9a-f][0-9a-f]"))
	return names
}

// wasteful lists the packs to be removed, and what of them has to be kept. A pack that the session remote can give again
// goes only as a whole: what is in it may lack what it names, which its mark allows.
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

// spare says whether all of a pack that is named is elsewhere.
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

// repack has stock git write a pack of objects, and gives its path; "": there is nothing to write.
func (r *Repo) repack(ctx context.Context, wanted map[object.ID]bool) (path string, err error) {
	if len(wanted) == 0 {
		return "", nil
	}
	var list bytes.Buffer
	for id := range wanted {
		list.WriteString(id.String() + "\n")
	}
	base := filepath.Join(r.own.dir, "pack", "pack")
	cmd := gitcmd.New(ctx, "--git-dir", r.dir, "-c", "core.hooksPath="+os.DevNull, "pack-objects", "-q", "--threads=1", "--delta-base-offset", base)
	cmd.Env = append(cmd.Env, gitcmd.PlainText, gitcmd.NoFetch, gitcmd.NoPrompt)
	cmd.Stdin = &list
	out, err := gitcmd.Output(cmd)
	if err != nil {
		return "", err
	}
	path = base + "-" + strings.TrimSpace(string(out))
	if !exists(path+".pack") || !exists(path+".idx") {
		return "", fmt.Errorf("git pack-objects: %w: %s", fs.ErrNotExist, path)
	}
	return path, disk.OS.SyncDir(filepath.Dir(path))
}

// removePacks removes packs; first what makes readers look at them. Who has them open reads on.
func (r *Repo) removePacks(old []*packTable) error {
	dir := filepath.Join(r.own.dir, "pack")
	if err := os.Remove(filepath.Join(dir, "multi-pack-index")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
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
	s, err := r.own.packs()
	if errors.Is(err, odb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Refresh()
}

// PackIDs lists the objects of a pack by the content of its index.
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

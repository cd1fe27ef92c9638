package refcopy

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// gitRefs reads the refs of a git directory from its files (gitrepository-layout(5)), without running git.
type gitRefs struct {
	dir    string           // path of the git directory
	format object.Format    // object format of the ids in the refs
	packed []packedrefs.Ref // contents of packed-refs when it was last read
	stat   fs.FileInfo      // attributes of packed-refs when it was last read
}

// refsOf contains the refs of a git directory. They are not read atomically: another process may change refs while they
// are read.
type refsOf struct {
	users   map[string]object.ID // branches, tags and notes refs, by name
	remotes map[string]object.ID // refs below refs/remotes/
	// head is the full name of the branch to which HEAD points; "" if HEAD is detached.
	head string
	// text is the contents of the file HEAD, which may be an id.
	text string
	// stashes contains the sizes and times of refs/stash and of its reflog as a text, which changes whenever the
	// stashes change.
	stashes string
	// dirs lists the directories to watch for changed refs.
	dirs []string
	// locked states that git holds a lock on a ref.
	locked bool
	// broken is the set of the refs whose files contain no valid id, for example after a power failure.
	broken map[string]bool
}

// read reads all refs. It reads loose refs before packed-refs, so that it misses no ref that git packs at the same
// time: git writes a ref to packed-refs before it deletes the file of the loose ref. It returns an error if the git
// directory is removed or replaced meanwhile, because all refs that were not read yet would seem to be removed.
func (g *gitRefs) read() (refsOf, error) {
	before, err := os.Stat(g.dir)
	if err != nil {
		return refsOf{}, fmt.Errorf("read refs: %w", err)
	}
	r, err := g.readAll()
	if err != nil {
		return r, err
	}
	_, err = os.Lstat(filepath.Join(g.dir, "HEAD"))
	if after, statErr := os.Stat(g.dir); err == nil && (statErr != nil || !os.SameFile(before, after)) {
		err = errors.New("git directory was replaced")
	}
	if err != nil {
		err = fmt.Errorf("read refs: %w", err)
	}
	return r, err
}

// readAll does the work of read, but does not check whether the git directory is removed or replaced.
func (g *gitRefs) readAll() (refsOf, error) {
	r := refsOf{users: map[string]object.ID{}, remotes: map[string]object.ID{}, broken: map[string]bool{},
		dirs: []string{g.dir, filepath.Join(g.dir, "refs")}}
	head, err := disk.ReadRegular(filepath.Join(g.dir, "HEAD"), disk.SmallFile)
	if err != nil { // otherwise all refs of an unreadable git directory would seem to be removed
		return r, fmt.Errorf("read refs: %w", err)
	}
	r.text = string(head)
	if name, ok := strings.CutPrefix(strings.TrimSpace(string(head)), "ref: "); ok &&
		strings.HasPrefix(name, "refs/heads/") {
		r.head = name
	}
	r.readStashes(g.dir)
	r.watchWorktrees(g.dir)
	loose := map[string]object.ID{}
	for _, below := range append([]string{"refs/remotes/"}, session.UsersPrefixes...) {
		if err := g.walk(below, loose, &r); err != nil {
			return r, fmt.Errorf("read refs: %w", err)
		}
	}
	if err := g.readPacked(); err != nil {
		return r, fmt.Errorf("read refs: %w", err)
	}
	put := func(name string, id object.ID) {
		if session.IsUsers(name) {
			r.users[name] = id
		} else if strings.HasPrefix(name, "refs/remotes/") {
			r.remotes[name] = id
		}
	}
	// A loose ref overrides the packed ref of the same name.
	for _, p := range g.packed {
		put(p.Name, p.ID)
	}
	for name, id := range loose {
		if id.IsZero() { // symbolic refs are not copied
			delete(r.users, name)
			continue
		}
		put(name, id)
	}
	return r, nil
}

// readStashes sets r.stashes for the git directory dir. It reads the attributes of refs/stash, which is the newest
// stash, and of its reflog, which contains the older ones.
func (r *refsOf) readStashes(dir string) {
	for _, at := range []string{"refs", "logs/refs"} {
		at = filepath.Join(dir, at)
		if _, err := os.Lstat(at); err != nil {
			continue
		}
		r.dirs = append(r.dirs, at)
		if st, err := os.Stat(filepath.Join(at, "stash")); err == nil {
			r.stashes += fmt.Sprintf("%d %d ", st.Size(), st.ModTime().UnixNano())
		}
	}
}

// maxWorktrees is the maximum number of linked worktrees whose directories are watched.
const maxWorktrees = 100

// watchWorktrees adds to r.dirs the directories with the HEADs and indexes of linked worktrees, because checkpoints
// contain these.
func (r *refsOf) watchWorktrees(dir string) {
	all := filepath.Join(dir, "worktrees")
	entries, err := os.ReadDir(all)
	if err != nil {
		return // usually there is no such directory
	}
	r.dirs = append(r.dirs, all)
	for _, e := range entries[:min(len(entries), maxWorktrees)] {
		if e.IsDir() {
			r.dirs = append(r.dirs, filepath.Join(all, e.Name()))
		}
	}
}

// same reports whether r and o have the same HEAD, stashes, branches, tags and notes.
func (r refsOf) same(o refsOf) bool {
	return r.text == o.text && r.stashes == o.stashes && maps.Equal(r.users, o.users)
}

// walk reads the loose refs whose names begin with below into the map loose. Symbolic refs get the zero id. It adds the
// directories, locks and broken refs that it finds to r.
func (g *gitRefs) walk(below string, loose map[string]object.ID, r *refsOf) error {
	watched := below != "refs/remotes/"
	root := filepath.Join(g.dir, filepath.FromSlash(below))
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if watched {
				r.dirs = append(r.dirs, file)
			}
			return nil
		}
		rel, err := filepath.Rel(g.dir, file)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		// git writes the new value of a ref to NAME.lock and then renames the file, so the ref is about to move.
		if strings.HasSuffix(name, ".lock") {
			r.locked = r.locked || watched
			return nil
		}
		// The file may be packed or removed between the directory listing and this read.
		text, err := disk.ReadRegular(file, disk.SmallFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		line := strings.TrimRight(string(text), "\r\n\t ")
		if strings.HasPrefix(line, "ref:") {
			loose[name] = object.ID{}
			return nil
		}
		id, err := object.ParseID(line)
		if err != nil || id.Format() != g.format {
			r.broken[name] = true
			return nil
		}
		loose[name] = id
		return nil
	})
}

// readPacked reads packed-refs, unless the file has the same inode, size and modification time as at the last read.
func (g *gitRefs) readPacked() error {
	name := filepath.Join(g.dir, "packed-refs")
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		g.packed, g.stat = nil, nil
		return nil
	}
	if err != nil {
		return err
	}
	// git replaces packed-refs by rename, so after a change the file has another inode or another modification time.
	if g.stat != nil && os.SameFile(st, g.stat) && st.ModTime().Equal(g.stat.ModTime()) && st.Size() == g.stat.Size() {
		return nil
	}
	text, err := disk.ReadRegular(name, disk.LargeFile)
	if err != nil {
		return err
	}
	packed, err := packedrefs.Decode(text)
	if err != nil {
		return err
	}
	g.packed, g.stat = packed, st
	return nil
}

// fetchedTags returns the names of the tags that the last git fetch has fetched. They are lines "ID\tnot-for-merge\ttag
// 'NAME' of URL" of FETCH_HEAD.
func fetchedTags(dir string) map[string]bool {
	tags := map[string]bool{}
	text, err := disk.ReadRegular(filepath.Join(dir, "FETCH_HEAD"), disk.LargeFile)
	if err != nil {
		return tags
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, "\t", 3)
		if len(fields) < 3 {
			continue
		}
		// Branches are listed as "branch 'NAME' of URL".
		rest, ok := strings.CutPrefix(fields[2], "tag '")
		if !ok {
			continue
		}
		if name, _, ok := strings.Cut(rest, "' of "); ok {
			tags["refs/tags/"+name] = true
		}
	}
	return tags
}

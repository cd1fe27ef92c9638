package workday

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// plain is a working tree on a plain file system, in which the steps of a ledger are repeated. Its states are the
// expected states of the tested tree.
type plain struct {
	dir string
}

// emptyDirs is the name of a file that lists the empty directories of the working tree. Checkpoints contain empty
// directories, and git trees do not. They must be restored, because `mv a b` has another effect if b is an empty
// directory.
const emptyDirs = "empty-directories"

// keepBeginning saves the state at the beginning of a ledger to the directory to: the files of a git directory without
// its objects, and the names of empty directories in dir.
func keepBeginning(ctx context.Context, dir, gitDir, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	empty, err := run(ctx, dir, nil, "find", ".", "-name", ".git", "-prune", "-o", "-type", "d", "-empty", "-print")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, emptyDirs), []byte(empty), 0o644); err != nil {
		return err
	}
	for _, name := range append([]string{"HEAD", "ORIG_HEAD", "SQUASH_MSG", "index", "packed-refs", "refs", "logs",
		"config"}, underWay...) {
		from := filepath.Join(gitDir, name)
		if !exists(from) {
			continue
		}
		if _, err := run(ctx, to, nil, "cp", "-a", from, "."); err != nil {
			return err
		}
	}
	return nil
}

// newPlain creates a plain tree with the state that keepBeginning has saved in beginning. objects lists object
// directories with all objects that the steps may need.
func newPlain(ctx context.Context, dir, beginning string, tree string, objects []string) (*plain, error) {
	gitDir := filepath.Join(dir, ".git")
	do := func(env []string, args ...string) (string, error) { return run(ctx, dir, env, args...) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := do(nil, "git", "init", "-q"); err != nil {
		return nil, err
	}
	had, err := os.ReadFile(filepath.Join(beginning, "config"))
	if err != nil {
		return nil, err
	}
	// Keep the settings of branches and of the remote origin, because they determine upstreams and the meaning of short
	// names.
	var config strings.Builder
	keep := false
	for line := range strings.Lines(string(had)) {
		if strings.HasPrefix(line, "[") {
			keep = strings.HasPrefix(line, "[branch ") || strings.HasPrefix(line, `[remote "origin"]`)
		}
		if keep && !strings.Contains(line, "promisor") && !strings.Contains(line, "partial") {
			config.WriteString(line)
		}
	}
	config.WriteString("[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n")
	own, err := os.ReadFile(filepath.Join(gitDir, "config"))
	if err == nil {
		err = os.WriteFile(filepath.Join(gitDir, "config"), append(own, config.String()...), 0o644)
	}
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(gitDir, "objects", "info", "alternates"),
		[]byte(strings.Join(objects, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(beginning)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == "config" || e.Name() == emptyDirs {
			continue
		}
		if _, err := do(nil, "cp", "-a", filepath.Join(beginning, e.Name()), gitDir); err != nil {
			return nil, err
		}
	}
	env := []string{"GIT_INDEX_FILE=" + filepath.Join(gitDir, "index.plain")}
	if _, err := do(env, "git", "read-tree", tree); err != nil {
		return nil, err
	}
	if _, err := do(env, "git", "checkout-index", "-a", "-f"); err != nil {
		return nil, err
	}
	empty, err := os.ReadFile(filepath.Join(beginning, emptyDirs))
	if err != nil {
		return nil, err
	}
	for _, name := range lines(string(empty)) {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	// The index contains the stat data of the original tree. If a later step marks a file as assumed unchanged, the
	// wrong stat data would remain, and a revert or merge would refuse to change the file. So refresh the index, also the
	// entries that are marked already. The exit status 1, which means that files have changed, is ignored.
	_, _ = do(nil, "git", "update-index", "-q", "--really-refresh")
	return &plain{dir}, os.Remove(filepath.Join(gitDir, "index.plain"))
}

// make runs a step in the plain tree. It ignores the exit status, because a step may fail.
func (p *plain) make(ctx context.Context, e Entry) { _ = e.command(ctx, p.dir).Run() }

// takeMergedNotes sets the notes refs of the plain tree to those of the State was, where these contain everything that the
// plain tree has. The daemon merges the notes that the session remote has, among them those that the session pushed
// after its last checkpoint, before the kill. takeMergedNotes reports whether it has set a ref.
func (p *plain) takeMergedNotes(ctx context.Context, was, is State) (set bool) {
	for _, line := range without(was.Refs, is.Refs) {
		id, name, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(name, "refs/notes/") {
			continue
		}
		if _, err := run(ctx, p.dir, nil, "git", "merge-base", "--is-ancestor", name, id); err != nil {
			continue
		}
		_, err := run(ctx, p.dir, nil, "git", "update-ref", name, id)
		set = set || err == nil
	}
	return set
}

// view is the state of a plain tree at one moment. It is read without git.
type view struct {
	files map[string]string // "MODE CONTENT" by path, for paths that git does not ignore
	refs  string            // HEAD, branches, tags, notes and stashes
	index string            // key of the index's contents in the field indexes of film
	under string            // files of git's operation in progress, such as a merge
}

// film contains the views of a plain tree at all moments of a few steps.
type film struct {
	p       *plain
	views   []view
	indexes map[string][]byte
	cache   map[string]cached
}

type cached struct {
	ino          uint64
	size         int64
	mtime, ctime int64
	value        string
}

func newFilm(p *plain) *film {
	return &film{p: p, indexes: map[string][]byte{}, cache: map[string]cached{}}
}

// take adds a view of the current state, unless it is equal to the previous view.
func (f *film) take() error {
	v := view{files: map[string]string{}}
	root := f.p.dir
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case rel == ".git" || rel == "build":
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		value, err := f.value(path)
		if err == nil {
			v.files[settled(rel)] = value
		}
		return nil
	})
	if err != nil {
		return err
	}
	gitDir := filepath.Join(root, ".git")
	if v.refs, err = refsIn(gitDir); err != nil {
		return err
	}
	index, _ := os.ReadFile(filepath.Join(gitDir, "index"))
	v.index = digest(index)
	f.indexes[v.index] = index
	under, err := operation(gitDir)
	if err != nil {
		return err
	}
	v.under = strings.Join(under, "\n")
	if n := len(f.views); n > 0 && f.views[n-1].same(v) {
		return nil
	}
	f.views = append(f.views, v)
	return nil
}

func (v view) same(o view) bool {
	if v.refs != o.refs || v.index != o.index || v.under != o.under || len(v.files) != len(o.files) {
		return false
	}
	for path, value := range v.files {
		if o.files[path] != value {
			return false
		}
	}
	return true
}

// refsIn returns the values of HEAD, the refs and the stashes of a git directory in the form that refsKey returns.
func refsIn(gitDir string) (string, error) {
	refs := map[string]string{}
	packed, err := os.ReadFile(filepath.Join(gitDir, "packed-refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(packed)) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "refs/") {
			refs[name] = id
		}
	}
	err = filepath.WalkDir(filepath.Join(gitDir, "refs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".lock") {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return err
		}
		id, err := os.ReadFile(path)
		rel, _ := filepath.Rel(gitDir, path)
		if err == nil {
			refs[rel] = strings.TrimSpace(string(id))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	head, err := os.ReadFile(filepath.Join(gitDir, "HEAD"))
	if err != nil {
		return "", err
	}
	s := State{Head: strings.TrimSpace(string(head))}
	if name, ok := strings.CutPrefix(s.Head, "ref: "); ok {
		s.Branch, s.Head = name, refs[name]
	}
	for name, id := range refs {
		if !strings.HasPrefix(name, "refs/remotes/") {
			s.Refs = append(s.Refs, id+" "+name)
		}
	}
	if refs["refs/stash"] != "" {
		log, _ := os.ReadFile(filepath.Join(gitDir, "logs", "refs", "stash"))
		for line := range strings.Lines(string(log)) {
			about, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			if fields := strings.Fields(about); len(fields) > 1 {
				s.Stashes = append(s.Stashes, fields[1]+" "+message)
			}
		}
		slices.Reverse(s.Stashes)
	}
	return s.refsKey(), nil
}

// refsKey returns the values of HEAD, the refs and the stashes as one text.
func (s State) refsKey() string {
	refs := slices.Clone(s.Refs)
	slices.Sort(refs)
	return fmt.Sprintf("%s\n%s\n%s\nstashes\n%s", s.Branch, s.Head, strings.Join(refs, "\n"),
		strings.Join(s.Stashes, "\n"))
}

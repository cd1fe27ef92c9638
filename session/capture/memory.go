package capture

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// memory describes the previous checkpoint, so that the next one reads only what has changed since. It is an
// optimization: without it, the next checkpoint reads everything that differs from the base tree. Therefore it is
// stored in a file without fsync, and an unreadable file is ignored.
type memory struct {
	Version    int    `json:"version"`
	Checkpoint string `json:"point"` // commit of the checkpoint that is described
	Token      string `json:"token"` // position in the change journal of the working tree at that time
	Tree       string `json:"tree"`  // tree of the files at journal position Token
	Rules      string `json:"rules"` // hash of the rules that decided which paths were left out
	// Left are the paths of the working tree that Tree does not contain.
	Left map[string]LeftOut `json:"left,omitempty"`
	// Ignore maps directories to the texts of their ignore files, for ignore files that Tree does not contain. The
	// rules of these files still apply.
	Ignore map[string]string `json:"ignore,omitempty"`
	// Attributes lists the directories whose .gitattributes file differs from the .gitattributes file in the base tree.
	Attributes []string `json:"attributes,omitempty"`
	// Dirs holds the permissions of those empty directories that have permissions other than 0755.
	Dirs  map[string]uint32 `json:"dirs,omitempty"`
	Index *indexMemory      `json:"index,omitempty"`
	// Linked are the indexes of the linked worktrees inside the mount, by path.
	Linked map[string]*indexMemory `json:"linked,omitempty"`
	tree   object.ID               // the parsed value of Tree
}

// indexMemory is an index as it was read for the previous checkpoint.
type indexMemory struct {
	Stat fileStat `json:"stat"` // attributes of the index file
	Head string   `json:"head"` // tree of HEAD when the index was read
	// Tree is the id of the tree that the plain entries of the index form.
	Tree string `json:"tree"`
	// Special holds the entries that a tree cannot describe. They are not written to the memory file.
	Special []session.IndexEntry `json:"-"`
	Plain   bool                 `json:"plain"` // whether Special is empty
}

// rememberIndex returns the data about an index that the next checkpoint needs. st has the attributes of the index
// file.
func rememberIndex(st fileStat, t tracking) *indexMemory {
	return &indexMemory{Stat: st, Head: t.head.String(), Tree: t.index.Tree.String(), Special: t.index.Special,
		Plain: len(t.index.Special) == 0}
}

const (
	memoryVersion = 1
	// maxRemembered is the maximum number of left-out paths in the memory file. If there are more, no file is written.
	maxRemembered = 20_000
)

// isUnchanged reports whether an index is unchanged: its file has the attributes st, as before, and the tree of HEAD is
// head, as before. It returns false if m is nil.
func (m *indexMemory) isUnchanged(st fileStat, head object.ID) bool {
	return m != nil && m.Stat == st && m.Head == head.String()
}

// index returns the index that m describes. It returns an error if the index has special entries, which are not stored
// in the file.
func (m *indexMemory) index() (session.Index, error) {
	if !m.Plain && m.Special == nil {
		return session.Index{}, errors.New("special entries of the previous index are not known")
	}
	id, err := object.ParseID(m.Tree)
	return session.Index{Tree: id, Special: m.Special}, err
}

// startCheckpoint returns the checkpoint from which a mount with the base tree base was resumed. It returns false if
// the mount was made from a commit, or if the checkpoint cannot be read.
func startCheckpoint(r *session.Repo, base object.ID) (session.Checkpoint, bool) {
	ref, err := r.Ref(session.BaseRef(r.Session()))
	if err != nil || ref.IsZero() {
		return session.Checkpoint{}, false
	}
	p, err := r.CheckpointAt(ref)
	// If the base tree is not the checkpoint's tree, the mount did not start from that checkpoint.
	return p, err == nil && p.Tree == base
}

// startIndex returns the index at the checkpoint from which the mount was resumed, or nil if there is no such
// checkpoint or it cannot be read. It also sets c.baseDirs.
func (c *Capturer) startIndex() *indexMemory {
	p, ok := startCheckpoint(c.o.Repo, c.o.BaseTree)
	if !ok {
		return nil
	}
	s, err := c.o.Repo.State(p)
	if err != nil {
		return nil
	}
	c.baseDirs = s.Dirs
	// No file has a negative inode number, so the next checkpoint reads the index file in any case.
	g := gitState{State: s, stat: fileStat{Ino: -1}}
	if info, err := c.o.Repo.Commit(s.Head); err == nil {
		g.head = info.Tree
	}
	return rememberIndex(g.stat, tracking{g.head, g.Index})
}

// tracking returns HEAD's tree and the index at the previous checkpoint. It returns the zero value if m is nil.
func (m *indexMemory) tracking() tracking {
	if m == nil {
		return tracking{}
	}
	head, _ := object.ParseID(m.Head) // HEAD's tree; zero for an unborn branch
	tree, _ := object.ParseID(m.Tree)
	return tracking{head, session.Index{Tree: tree, Special: m.Special}}
}

// differs reports whether HEAD's tree or the index in t differs from that at the previous checkpoint. It returns true
// if m is nil.
func (m *indexMemory) differs(t tracking) bool {
	return m == nil || m.Head != t.head.String() || m.Tree != t.index.Tree.String() ||
		!slices.Equal(m.Special, t.index.Special)
}

// recall reads a memory from the file called name. It returns the zero memory if the file cannot be read, or if it
// describes another checkpoint than the one with the commit checkpoint.
func recall(name string, checkpoint object.ID) memory {
	text, err := os.ReadFile(name)
	var m memory
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil {
		m.tree, err = object.ParseID(m.Tree)
	}
	// The journal position in the file belongs to another checkpoint. With that position, the next checkpoint would miss
	// changes.
	if err != nil || m.Version != memoryVersion || m.Checkpoint != checkpoint.String() {
		return memory{}
	}
	return m
}

// save replaces the file called name. If the paths cannot be stored in JSON, or if there are more than maxRemembered,
// save removes the file.
func (m *memory) save(name string) error {
	if name == "" {
		return nil
	}
	// Writing so large a file for each checkpoint would cost more than reading all changes once after the next start.
	if len(m.Left) > maxRemembered {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	for path := range m.Dirs {
		if !utf8.ValidString(path) {
			return os.RemoveAll(name)
		}
	}
	for path := range m.Linked {
		if !utf8.ValidString(path) {
			return os.RemoveAll(name)
		}
	}
	for path := range m.Left {
		if !utf8.ValidString(path) { // JSON would replace the invalid bytes
			return os.RemoveAll(name)
		}
	}
	m.Version, m.Tree = memoryVersion, m.tree.String()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return disk.WriteFileUnsynced(name, text, 0o600)
}

// remember stores the description of the checkpoint s, which has the commit commit, for the next checkpoint.
func (c *Capturer) remember(s *shot, commit object.ID) {
	f := s.view.frozen
	c.left = s.edit.left
	c.reportSaved(s)
	c.mem = memory{
		Checkpoint: commit.String(), Token: f.Token, tree: s.tree, Rules: s.view.x.print, Left: c.left.all,
		Ignore:     s.edit.ignore,
		Attributes: slices.Sorted(maps.Keys(s.edit.attributes)), Dirs: s.edit.dirs,
		Index: rememberIndex(s.state.stat, tracking{s.state.head, s.state.Index}), Linked: c.roots.remembered(),
	}
	// An ignore file could not be read, so the checkpoint may contain ignored files. Without a journal position and an
	// index, the next checkpoint reads everything again.
	if len(s.view.unread) > 0 {
		c.mem, c.left = memory{}, newLeftSet(nil)
	}
	if err := c.mem.save(c.o.Memory); err != nil {
		c.o.Log.Warn("save description of the newest checkpoint", zap.Error(err))
	}
}

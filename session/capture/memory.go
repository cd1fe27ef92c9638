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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// memory is what the next checkpoint goes on from. It is a help only: without it everything is looked at that differs from the
// base tree. So it is written without a sync, and what cannot be read counts for nothing.
type memory struct {
	Version int    `json:"version"`
	Point   string `json:"point"` // commit that it belongs to
	Token   string `json:"token"` // of the Tree
	Tree    string `json:"tree"`  // at Token
	Rules   string `json:"rules"` // by which paths were left out
	// Left are the paths that are not in Tree.
	Left map[string]LeftOut `json:"left,omitempty"`
	// Ignore holds the ignore files that Tree does not, by their directories.
	Ignore map[string]string `json:"ignore,omitempty"`
	// Attributes are the directories whose files of attributes are others than in the base tree.
	Attributes []string `json:"attributes,omitempty"`
	// Dirs are the permissions of empty directories that are not 0755.
	Dirs  map[string]uint32 `json:"dirs,omitempty"`
	Index *indexMemory      `json:"index,omitempty"`
	tree  object.ID         // Tree
}

// indexMemory is an index that was read.
type indexMemory struct {
	Stat    fileStat             `json:"stat"`
	Head    string               `json:"head"` // tree of HEAD then
	Tree    string               `json:"tree"`
	Special []session.IndexEntry `json:"-"`
	Plain   bool                 `json:"plain"` // Special is empty
}

// remembered is what the next checkpoint has to know of an index.
func (s *gitState) remembered() *indexMemory {
	return &indexMemory{Stat: s.stat, Head: s.head.String(), Tree: s.Index.Tree.String(), Special: s.Index.Special, Plain: len(s.Index.Special) == 0}
}

const (
	memoryVersion = 1
	// maxRemembered is how many paths that were left out are worth a file.
	maxRemembered = 20_000
)

// index gives what was staged.
func (m *indexMemory) index() (session.Index, error) {
	if !m.Plain && m.Special == nil {
		return session.Index{}, errors.New("special entries were not kept")
	}
	id, err := object.ParseID(m.Tree)
	return session.Index{Tree: id, Special: m.Special}, err
}

// began tells what git knew in the checkpoint that the mount began with; nil: it did not begin with one, or that cannot be read.
func (c *Capturer) began() *indexMemory {
	ref, err := c.o.Repo.Ref(session.BaseRef(c.o.Repo.Session()))
	if err != nil || ref.IsZero() {
		return nil
	}
	p, err := c.o.Repo.PointAt(ref)
	if err != nil || p.Tree != c.o.BaseTree {
		return nil
	}
	s, err := c.o.Repo.State(p)
	if err != nil {
		return nil
	}
	c.baseDirs = s.Dirs
	g := gitState{State: s, stat: fileStat{Ino: -1}} // of no file
	if info, err := c.o.Repo.Commit(s.Head); err == nil {
		g.head = info.Tree
	}
	return g.remembered()
}

// tracking is what git knew, as far as that was kept.
func (m *memory) tracking() tracking {
	if m.Index == nil {
		return tracking{}
	}
	head, _ := object.ParseID(m.Index.Head) // none of an unborn branch
	tree, _ := object.ParseID(m.Index.Tree)
	return tracking{head, session.Index{Tree: tree, Special: m.Index.Special}}
}

// recall reads the memory that belongs to a checkpoint.
func recall(name string, point object.ID) memory {
	text, err := os.ReadFile(name)
	var m memory
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil {
		m.tree, err = object.ParseID(m.Tree)
	}
	if err != nil || m.Version != memoryVersion || m.Point != point.String() {
		return memory{}
	}
	return m
}

// save keeps the memory for another process.
func (m *memory) save(name string) error {
	if name == "" {
		return nil
	}
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
	for path := range m.Left {
		if !utf8.ValidString(path) { // which JSON does not keep
			return os.RemoveAll(name)
		}
	}
	m.Version, m.Tree = memoryVersion, m.tree.String()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	temp := name + ".tmp"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, name)
}

// remember keeps what the next checkpoint goes on from.
func (c *Capturer) remember(s *shot, commit object.ID) {
	f := s.view.frozen
	c.left = s.edit.left
	c.saved(s)
	c.mem = memory{
		Point: commit.String(), Token: f.Token, tree: s.tree, Rules: s.view.x.print, Left: c.left.all, Ignore: s.edit.ignore,
		Attributes: slices.Sorted(maps.Keys(s.edit.attributes)), Index: s.state.remembered(), Dirs: s.edit.dirs,
	}
	if len(s.view.unread) > 0 { // the next checkpoint looks at everything, to leave out what this one holds too much
		c.mem, c.left = memory{}, newLeftSet(nil)
	}
	if err := c.mem.save(c.o.Memory); err != nil {
		c.o.Log.Warn("the next start looks at all changes", zap.Error(err))
	}
}

package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
)

// Worktree describes a linked worktree (git worktree add) inside the mount, as it was at a checkpoint. Its files are in
// the tree of the commit Files, at Path. A State stores the rest as files below worktreesDir, which older versions of
// artifactfs ignore:
//
//	artifactfs-worktrees/NAME/worktree   lines "path QUOTED", "branch REF", "commit ID", "files ID", "index ID"
//	artifactfs-worktrees/NAME/special    entries of the index that a tree cannot express, as in the entry stateSpecial
//	artifactfs-worktrees/NAME/git/       files that record an operation in progress, such as MERGE_HEAD
type Worktree struct {
	Name   string    // name of the worktree's directory below worktrees/ in the git directory
	Path   string    // path relative to the root of the main working tree
	Branch string    // full name of the ref to which the worktree's HEAD points; "" if HEAD is detached
	Commit object.ID // commit of the worktree's HEAD; zero if HEAD is on a branch without a commit
	Files  object.ID // commit whose tree contains the files of the main and all linked worktrees
	Index  Index     // index of the worktree
	// Operation contains the files that record an operation in progress, such as MERGE_HEAD, by their paths in the
	// worktree's directory below worktrees/.
	Operation map[string]File
}

const (
	worktreesDir    = "artifactfs-worktrees/"
	worktreeFile    = "/worktree"
	worktreeSpecial = "/special"
	worktreeGit     = "/git/"

	// MaxWorktrees is the maximum number of linked worktrees in a State.
	MaxWorktrees = 1000
)

// Valid reports whether l has a valid name, path and HEAD, so that a State can store it.
func (l Worktree) Valid() bool {
	head := l.Branch == "" && !l.Commit.IsZero() || strings.HasPrefix(l.Branch, "refs/") && refname.Valid(l.Branch)
	return head && ValidWorktree(l.Name, l.Path)
}

// ValidWorktree reports whether name and at can be the name and the path of a linked worktree.
func ValidWorktree(name, at string) bool {
	return validPath(at, object.MaxNameLen) && path.Clean(at) == at && validPath(name, object.MaxNameLen) &&
		!strings.Contains(name, "/")
}

// AddWorktrees adds linked worktrees to the files of the State. The worktrees must be valid.
func (s *State) AddWorktrees(list []Worktree) error {
	if s.Files == nil && len(list) > 0 {
		s.Files = map[string]File{}
	}
	for _, l := range list {
		var b bytes.Buffer
		fmt.Fprintf(&b, "path %s\n", strconv.Quote(l.Path))
		if l.Branch != "" {
			fmt.Fprintf(&b, "branch %s\n", l.Branch)
		}
		if !l.Commit.IsZero() {
			fmt.Fprintf(&b, "commit %s\n", l.Commit)
		}
		fmt.Fprintf(&b, "files %s\nindex %s\n", l.Files, l.Index.Tree)
		s.Files[worktreesDir+l.Name+worktreeFile] = File{Content: b.Bytes()}
		for name, file := range l.Operation {
			s.Files[worktreesDir+l.Name+worktreeGit+name] = file
		}
		if len(l.Index.Special) == 0 {
			continue
		}
		special, err := encodeSpecial(l.Index.Special)
		if err != nil {
			return err
		}
		s.Files[worktreesDir+l.Name+worktreeSpecial] = File{Content: special}
	}
	return nil
}

// Worktrees returns the linked worktrees of the State, sorted by path. It returns an error if one of them is invalid,
// if two have the same path, or if there are more than MaxWorktrees.
func (s *State) Worktrees(f object.Format) ([]Worktree, error) {
	var list []Worktree
	for name, file := range s.Files {
		rest, ours := strings.CutPrefix(name, worktreesDir)
		name, isWorktree := strings.CutSuffix(rest, worktreeFile)
		if !ours || !isWorktree || strings.Contains(name, "/") {
			continue
		}
		l, err := parseWorktree(f, name, string(file.Content))
		if err == nil {
			l.Index.Special, err = parseSpecial(f, s.Files[worktreesDir+name+worktreeSpecial].Content)
		}
		if err != nil {
			return nil, fmt.Errorf("read linked worktree %.80q: %w", name, err)
		}
		for path, file := range s.Files {
			if at, ours := strings.CutPrefix(path, worktreesDir+name+worktreeGit); ours {
				if l.Operation == nil {
					l.Operation = map[string]File{}
				}
				l.Operation[at] = file
			}
		}
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b Worktree) int { return strings.Compare(a.Path, b.Path) })
	for i := range list {
		if i > 0 && list[i].Path == list[i-1].Path || i == MaxWorktrees {
			return nil, fmt.Errorf("read linked worktrees: %w: too many, or two at %.80q", errState, list[i].Path)
		}
	}
	return list, nil
}

// HasWorktrees reports whether the State of a checkpoint contains linked worktrees. It is faster than reading the
// State.
func (l *Lanes) HasWorktrees(p Checkpoint) (bool, error) {
	content, err := typed(l.objects, p.State, object.Commit, object.MaxCommitSize)
	if err != nil {
		return false, err
	}
	info, err := object.ParseCommit(l.format, content)
	id := info.Tree
	for _, name := range []string{stateFiles, strings.TrimSuffix(worktreesDir, "/")} {
		if err != nil {
			return false, err
		}
		var entries []object.TreeEntry
		if entries, err = readTree(l.objects, l.format, id); err != nil {
			return false, err
		}
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name && e.Mode == object.ModeDir })
		if i < 0 {
			return false, nil
		}
		id = entries[i].ID
	}
	return true, nil
}

// parseWorktree parses the file worktreeFile of the linked worktree name. It ignores unknown lines, which a later
// version of artifactfs may have written.
func parseWorktree(f object.Format, name, text string) (Worktree, error) {
	l := Worktree{Name: name}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var err error
		switch key {
		case "path":
			l.Path, err = strconv.Unquote(value)
		case "branch":
			l.Branch = value
		case "commit":
			l.Commit, err = object.ParseIDOf(f, value)
		case "files":
			l.Files, err = object.ParseIDOf(f, value)
		case "index":
			l.Index.Tree, err = object.ParseIDOf(f, value)
		}
		if err != nil {
			return l, fmt.Errorf("%w: line %.80q: %w", errState, line, err)
		}
	}
	if !l.Valid() || l.Files.IsZero() || l.Index.Tree.IsZero() {
		return l, fmt.Errorf("%w: invalid linked worktree", errState)
	}
	return l, nil
}

// encodeSpecial returns special entries of an index as JSON, one object on each line.
func encodeSpecial(list []IndexEntry) ([]byte, error) {
	var special bytes.Buffer
	lines := json.NewEncoder(&special)
	lines.SetEscapeHTML(false)
	for _, e := range list {
		if err := lines.Encode(specialEntry{[]byte(e.Path), uint32(e.Mode), e.ID.String(), e.Stage, e.AssumeValid,
			e.SkipWorktree, e.IntentToAdd}); err != nil {
			return nil, fmt.Errorf("write checkpoint state: %w", err)
		}
	}
	return special.Bytes(), nil
}

// conflicts returns the entries of a tree that contains the blobs of the conflicts in an index. The tree keeps them
// reachable, because the tree of the index contains only blobs of stage 0.
func conflicts(list []IndexEntry) (blobs []object.TreeEntry) {
	for _, e := range list {
		if e.Stage != 0 && e.Mode.IsBlob() && !e.ID.IsZero() {
			blobs = append(blobs, object.TreeEntry{Name: fmt.Sprintf("%06d", len(blobs)), Mode: object.ModeFile, ID: e.ID})
		}
	}
	return blobs
}

// WorktreeFiles returns the ids of two commits, and all objects that have to be written for them. The commit full has
// the tree files; it is the value for Worktree.Files. The commit indexes keeps the indexes of the linked worktrees in
// list reachable. Neither has a parent. Equal parameters give equal objects.
func WorktreeFiles(f object.Format, files object.ID,
	list []Worktree) (full, indexes object.ID, objects []odb.Outgoing, err error) {
	w := &stateWriter{format: f}
	commit := func(tree object.ID) object.ID {
		const who = "artifactfs <artifactfs@localhost> 0 +0000"
		return w.add(object.Commit, fmt.Appendf(nil, "tree %s\nauthor %s\ncommitter %s\n\nlinked worktrees\n",
			tree, who, who))
	}
	var entries []object.TreeEntry
	for _, l := range list {
		of := []object.TreeEntry{{Name: stateIndex, Mode: object.ModeDir, ID: l.Index.Tree}}
		if blobs := conflicts(l.Index.Special); len(blobs) > 0 {
			of = append(of, object.TreeEntry{Name: stateBlobs, Mode: object.ModeDir, ID: w.add(object.Tree, EncodeTree(blobs))})
		}
		entries = append(entries, object.TreeEntry{Name: l.Name, Mode: object.ModeDir,
			ID: w.add(object.Tree, EncodeTree(of))})
	}
	indexes = commit(w.add(object.Tree, EncodeTree(entries)))
	full = commit(files)
	return full, indexes, w.objects, w.err
}

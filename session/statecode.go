package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// The tree of a State's commit. What is empty is left out.
const (
	stateHead    = "head"     // "ref: NAME\n" if HEAD names a branch, then "ID\n" if there is a commit
	stateIndex   = "index"    // tree of all entries of stage 0
	stateSpecial = "special"  // a JSON object a line: specialEntry
	stateBlobs   = "conflict" // what only special names, so that it is reachable: tree of blobs 000000, 000001, ...
	stateRefs    = "refs"     // "ID NAME\n", as in packed-refs
	stateRemote  = "remotes"  // the same
	stateStashes = "stashes"  // "ID MESSAGE\n", newest first
	stateTags    = "tags"     // tree of blobs, each the content of a tag whose id is its name: git knows no tree with tags in it
	stateDirs    = "dirs"     // "MODE PATH\0", sorted by path: permissions of empty directories in octal
	stateFiles   = "git"      // tree of files of the git directory
)

const (
	maxStateText = 64 << 20 // of one text of a State, in bytes
	maxStateDeep = 32       // directories below stateFiles
)

// Objects returns objects by their ids.
type Objects interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
}

// specialEntry is a line of stateSpecial.
type specialEntry struct {
	Path         []byte `json:"path"` // not all paths are UTF-8
	Mode         uint32 `json:"mode"`
	ID           string `json:"id,omitempty"`
	Stage        uint8  `json:"stage,omitempty"`
	AssumeValid  bool   `json:"assume_valid,omitempty"`
	SkipWorktree bool   `json:"skip_worktree,omitempty"`
	IntentToAdd  bool   `json:"intent_to_add,omitempty"`
}

// Outgoing returns an object with these contents.
func Outgoing(f object.Format, t object.Type, content []byte) (odb.Outgoing, error) {
	id, err := object.Hash(f, t, content)
	return odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}, err
}

// EncodeTree returns the contents of a tree, whose entries it sorts as git does.
func EncodeTree(entries []object.TreeEntry) []byte {
	slices.SortFunc(entries, object.CompareEntries)
	b := make([]byte, 0, 48*len(entries))
	for _, e := range entries {
		b = append(strconv.AppendUint(b, uint64(e.Mode), 8), ' ')
		b = append(append(b, e.Name...), 0)
		b = append(b, e.ID.Bytes()...)
	}
	return b
}

// stateWriter collects the objects of a State.
type stateWriter struct {
	format  object.Format
	objects []odb.Outgoing
	err     error
}

func (w *stateWriter) add(t object.Type, content []byte) object.ID {
	o, err := Outgoing(w.format, t, content)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.objects = append(w.objects, o)
	return o.ID
}

// text adds a text to the entries of a tree, if there is any.
func (w *stateWriter) text(entries []object.TreeEntry, name string, text []byte) []object.TreeEntry {
	if len(text) == 0 {
		return entries
	}
	return append(entries, object.TreeEntry{Name: name, Mode: object.ModeFile, ID: w.add(object.Blob, text)})
}

// EncodeState returns the commit of a State and the objects that it is made of, the commit the last of them; what the index
// names is not among them. Parents are the owned commits that it names.
func EncodeState(f object.Format, s State, parents []object.ID, at time.Time) (object.ID, []odb.Outgoing, error) {
	w := &stateWriter{format: f}
	var head bytes.Buffer
	if s.Branch != "" {
		fmt.Fprintf(&head, "ref: %s\n", s.Branch)
	}
	if !s.Head.IsZero() {
		fmt.Fprintf(&head, "%s\n", s.Head)
	}
	entries := w.text(nil, stateHead, head.Bytes())
	if !s.Index.Tree.IsZero() {
		entries = append(entries, object.TreeEntry{Name: stateIndex, Mode: object.ModeDir, ID: s.Index.Tree})
	}
	var special bytes.Buffer
	var blobs []object.TreeEntry
	lines := json.NewEncoder(&special)
	lines.SetEscapeHTML(false)
	for _, e := range s.Index.Special {
		if err := lines.Encode(specialEntry{[]byte(e.Path), uint32(e.Mode), e.ID.String(), e.Stage, e.AssumeValid, e.SkipWorktree, e.IntentToAdd}); err != nil {
			return object.ID{}, nil, fmt.Errorf("write state: %w", err)
		}
		if e.Stage != 0 && e.Mode.IsBlob() && !e.ID.IsZero() {
			blobs = append(blobs, object.TreeEntry{Name: fmt.Sprintf("%06d", len(blobs)), Mode: object.ModeFile, ID: e.ID})
		}
	}
	entries = w.text(entries, stateSpecial, special.Bytes())
	if len(blobs) > 0 {
		entries = append(entries, object.TreeEntry{Name: stateBlobs, Mode: object.ModeDir, ID: w.add(object.Tree, EncodeTree(blobs))})
	}
	entries = w.text(entries, stateRefs, refLines(s.Refs))
	entries = w.text(entries, stateRemote, refLines(s.Remote))
	var stashes bytes.Buffer
	for _, stash := range s.Stashes {
		fmt.Fprintf(&stashes, "%s %s\n", stash.Commit, strings.ReplaceAll(stash.Message, "\n", " "))
	}
	entries = w.text(entries, stateStashes, stashes.Bytes())
	if len(s.Tags) > 0 {
		var tags []object.TreeEntry
		for id, content := range s.Tags {
			tags = append(tags, object.TreeEntry{Name: id.String(), Mode: object.ModeFile, ID: w.add(object.Blob, content)})
		}
		entries = append(entries, object.TreeEntry{Name: stateTags, Mode: object.ModeDir, ID: w.add(object.Tree, EncodeTree(tags))})
	}
	var dirs bytes.Buffer
	for _, path := range slices.Sorted(maps.Keys(s.Dirs)) {
		fmt.Fprintf(&dirs, "%04o %s\x00", s.Dirs[path]&0o7777, path)
	}
	entries = w.text(entries, stateDirs, dirs.Bytes())
	if len(s.Files) > 0 {
		id, err := w.files(s.Files)
		if err != nil {
			return object.ID{}, nil, err
		}
		entries = append(entries, object.TreeEntry{Name: stateFiles, Mode: object.ModeDir, ID: id})
	}
	var commit bytes.Buffer
	fmt.Fprintf(&commit, "tree %s\n", w.add(object.Tree, EncodeTree(entries)))
	for i, p := range parents {
		if !slices.Contains(parents[:i], p) {
			fmt.Fprintf(&commit, "parent %s\n", p)
		}
	}
	signed(&commit, at)
	commit.WriteString("\nstate\n")
	if len(s.Left) > 0 {
		commit.WriteString("\n")
		lines := json.NewEncoder(&commit)
		lines.SetEscapeHTML(false)
		for _, l := range s.Left {
			if err := lines.Encode(l); err != nil {
				return object.ID{}, nil, fmt.Errorf("write state: %w", err)
			}
		}
	}
	id := w.add(object.Commit, commit.Bytes())
	return id, w.objects, w.err
}

func refLines(refs []packedrefs.Ref) []byte {
	var b bytes.Buffer
	for _, r := range refs {
		fmt.Fprintf(&b, "%s %s\n", r.ID, r.Name)
	}
	return b.Bytes()
}

// files makes a tree of files by their paths.
func (w *stateWriter) files(files map[string]File) (object.ID, error) {
	var entries []object.TreeEntry
	below := map[string]map[string]File{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		dir, rest, deep := strings.Cut(name, "/")
		if !validFileName(dir) {
			return object.ID{}, fmt.Errorf("write state: %.80q is no path of a file", name)
		}
		if deep {
			if below[dir] == nil {
				below[dir] = map[string]File{}
			}
			below[dir][rest] = file
			continue
		}
		mode := object.ModeFile
		if file.Exec {
			mode = object.ModeExec
		}
		entries = append(entries, object.TreeEntry{Name: name, Mode: mode, ID: w.add(object.Blob, file.Content)})
	}
	for _, dir := range slices.Sorted(maps.Keys(below)) {
		id, err := w.files(below[dir])
		if err != nil {
			return object.ID{}, err
		}
		entries = append(entries, object.TreeEntry{Name: dir, Mode: object.ModeDir, ID: id})
	}
	return w.add(object.Tree, EncodeTree(entries)), nil
}

func validFileName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= object.MaxNameLen && !strings.ContainsAny(name, "/\x00") && !object.IsDotGit(name)
}

// errState says that the objects of a State are not what EncodeState makes.
var errState = errors.New("not the state of a checkpoint")

// ReadState returns the State whose commit is id.
func ReadState(src Objects, f object.Format, id object.ID) (State, error) {
	s, err := readState(src, f, id)
	if err != nil {
		return State{}, fmt.Errorf("read state %s: %w", id, err)
	}
	return s, nil
}

func readState(src Objects, f object.Format, id object.ID) (State, error) {
	content, err := typed(src, id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return State{}, err
	}
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return State{}, err
	}
	s := State{Left: parseLeft(content)}
	entries, err := readTree(src, f, info.Tree)
	if err != nil {
		return State{}, err
	}
	for _, e := range entries {
		if err := s.read(src, f, e); err != nil {
			return State{}, fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return s, nil
}

func readTree(src Objects, f object.Format, id object.ID) ([]object.TreeEntry, error) {
	content, err := typed(src, id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, err
	}
	return object.ParseTree(f, content)
}

// read takes up one entry of a State's tree. Entries that are not known are of later versions, and left alone.
func (s *State) read(src Objects, f object.Format, e object.TreeEntry) error {
	switch e.Name {
	case stateIndex, stateFiles, stateTags:
		if e.Mode != object.ModeDir {
			return errState
		}
		switch e.Name {
		case stateIndex:
			s.Index.Tree = e.ID
			return nil
		case stateTags:
			s.Tags = map[object.ID][]byte{}
			return readTags(src, f, e.ID, s.Tags)
		}
		s.Files = map[string]File{}
		return readFiles(src, f, e.ID, "", s.Files, 0)
	case stateHead, stateSpecial, stateRefs, stateRemote, stateStashes, stateDirs:
	default:
		return nil
	}
	text, err := typed(src, e.ID, object.Blob, maxStateText)
	if err != nil {
		return err
	}
	switch e.Name {
	case stateHead:
		s.Branch, s.Head, err = parseHead(f, string(text))
	case stateSpecial:
		s.Index.Special, err = parseSpecial(f, text)
	case stateRefs:
		s.Refs, err = parseRefs(f, text)
	case stateRemote:
		s.Remote, err = parseRefs(f, text)
	case stateDirs:
		s.Dirs, err = parseDirs(string(text))
	case stateStashes:
		s.Stashes, err = parseStashes(f, string(text))
	}
	return err
}

// readTags reads stateTags.
func readTags(src Objects, f object.Format, id object.ID, tags map[object.ID][]byte) error {
	entries, err := readTree(src, f, id)
	if err != nil {
		return err
	}
	for _, e := range entries {
		content, err := typed(src, e.ID, object.Blob, object.MaxCommitSize)
		if err != nil {
			return err
		}
		is, err := object.Hash(f, object.Tag, content)
		if err != nil {
			return err
		}
		if e.Mode != object.ModeFile || is.String() != e.Name {
			return fmt.Errorf("%w: %.80q is no tag", errState, e.Name)
		}
		tags[is] = content
	}
	return nil
}

// TagObjects returns the tags of a State, for a repository that lacks them.
func (s State) TagObjects(f object.Format) ([]odb.Outgoing, error) {
	var tags []odb.Outgoing
	for _, content := range s.Tags {
		o, err := Outgoing(f, object.Tag, content)
		if err != nil {
			return nil, fmt.Errorf("read tag of a state: %w", err)
		}
		tags = append(tags, o)
	}
	return tags, nil
}

func readFiles(src Objects, f object.Format, id object.ID, dir string, files map[string]File, deep int) error {
	if deep > maxStateDeep {
		return fmt.Errorf("%w: too many directories in each other", errState)
	}
	entries, err := readTree(src, f, id)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Mode == object.ModeDir {
			if err := readFiles(src, f, e.ID, dir+e.Name+"/", files, deep+1); err != nil {
				return err
			}
			continue
		}
		if e.Mode != object.ModeFile && e.Mode != object.ModeExec {
			return fmt.Errorf("%w: %s has mode %o", errState, dir+e.Name, uint32(e.Mode))
		}
		content, err := typed(src, e.ID, object.Blob, maxStateText)
		if err != nil {
			return err
		}
		files[dir+e.Name] = File{Content: content, Exec: e.Mode == object.ModeExec}
	}
	return nil
}

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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
)

// Entries of the tree of a State's commit. An entry whose file or directory would be empty is omitted.
const (
	stateHead    = "head"     // "ref: NAME\n" if HEAD points to a branch, then "ID\n" if there is a commit
	stateIndex   = "index"    // tree of all entries of stage 0
	stateSpecial = "special"  // one JSON object (specialEntry) on each line
	stateBlobs   = "conflict" // tree with the blobs that stateSpecial names, which keeps them reachable
	stateRefs    = "refs"     // lines "ID NAME\n", as in the file packed-refs
	stateRemote  = "remotes"  // refs below refs/remotes/, in the format of stateRefs
	stateStashes = "stashes"  // lines "ID MESSAGE\n", newest first
	stateTags    = "tags"     // tree with a blob for each tag object, named by its ID, with its contents
	stateDirs    = "dirs"     // "MODE PATH\0", sorted by path: octal permissions of empty directories
	stateFiles   = "git"      // tree with files of the git directory, such as MERGE_HEAD
)

// Limits for reading a State. They are needed because other users may write to the session remote from which the State
// was fetched.
const (
	maxStateText = 64 << 20 // maximum size of one text in bytes
	maxStateDeep = 32       // maximum depth of directories below stateFiles
)

// Objects reads git objects. Get returns odb.ErrTooLarge if the contents are larger than limit bytes.
type Objects interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
}

// specialEntry is the JSON form of an IndexEntry in the file stateSpecial.
type specialEntry struct {
	Path         []byte `json:"path"` // base64 in JSON, because a path need not be valid UTF-8
	Mode         uint32 `json:"mode"`
	ID           string `json:"id,omitempty"`
	Stage        uint8  `json:"stage,omitempty"`
	AssumeValid  bool   `json:"assume_valid,omitempty"`
	SkipWorktree bool   `json:"skip_worktree,omitempty"`
	IntentToAdd  bool   `json:"intent_to_add,omitempty"`
}

// Outgoing returns a git object of type t that can be written to an odb.Store.
func Outgoing(f object.Format, t object.Type, content []byte) (odb.Outgoing, error) {
	id, err := object.Hash(f, t, content)
	return odb.Outgoing{ID: id, Type: t, Size: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}, err
}

// EncodeTree returns the contents of the git tree with the given entries. It sorts the slice entries in git's order.
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

// stateWriter collects the objects of a State that is encoded. err is the first error of the method add.
type stateWriter struct {
	format  object.Format
	objects []odb.Outgoing // objects that were added, in this order
	err     error
}

// add adds an object to w.objects and returns its ID. It stores an error in w.err.
func (w *stateWriter) add(t object.Type, content []byte) object.ID {
	o, err := Outgoing(w.format, t, content)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.objects = append(w.objects, o)
	return o.ID
}

// text adds a blob with the contents text, and appends an entry for the blob with the given name to entries. If text is
// empty, it returns entries unchanged.
func (w *stateWriter) text(entries []object.TreeEntry, name string, text []byte) []object.TreeEntry {
	if len(text) == 0 {
		return entries
	}
	return append(entries, object.TreeEntry{Name: name, Mode: object.ModeFile, ID: w.add(object.Blob, text)})
}

// EncodeState returns the ID of the commit that stores the State s, and all objects that have to be written for it; the
// last one is the commit itself. The objects of s.Index are not among them. parents are the owned commits that s names:
// they become parents of the commit, so that they stay reachable. EncodeState removes duplicate parents.
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
	special, err := encodeSpecial(s.Index.Special)
	if err != nil {
		return object.ID{}, nil, err
	}
	entries = w.text(entries, stateSpecial, special)
	if blobs := conflicts(s.Index.Special); len(blobs) > 0 {
		entries = append(entries, object.TreeEntry{Name: stateBlobs, Mode: object.ModeDir,
			ID: w.add(object.Tree, EncodeTree(blobs))})
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
		entries = append(entries, object.TreeEntry{Name: stateTags, Mode: object.ModeDir,
			ID: w.add(object.Tree, EncodeTree(tags))})
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
	// git permits each parent only once.
	for i, p := range parents {
		if !slices.Contains(parents[:i], p) {
			fmt.Fprintf(&commit, "parent %s\n", p)
		}
	}
	signed(&commit, at)
	commit.WriteString("\nstate\n")
	// The list of paths that were left out is stored in the message and not in the tree, so that states that differ only
	// in this list have the same tree.
	if len(s.Left) > 0 {
		commit.WriteString("\n")
		lines := json.NewEncoder(&commit)
		lines.SetEscapeHTML(false)
		for _, l := range s.Left {
			if err := lines.Encode(l); err != nil {
				return object.ID{}, nil, fmt.Errorf("write checkpoint state: %w", err)
			}
		}
	}
	id := w.add(object.Commit, commit.Bytes())
	return id, w.objects, w.err
}

// refLines formats refs as lines "ID NAME\n".
func refLines(refs []packedrefs.Ref) []byte {
	var b bytes.Buffer
	for _, r := range refs {
		fmt.Fprintf(&b, "%s %s\n", r.ID, r.Name)
	}
	return b.Bytes()
}

// files adds trees and blobs for files, a map of files by path, and returns the ID of the root tree.
func (w *stateWriter) files(files map[string]File) (object.ID, error) {
	var entries []object.TreeEntry
	below := map[string]map[string]File{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := files[name]
		dir, rest, deep := strings.Cut(name, "/")
		if len(dir) > object.MaxNameLen || !validFileName(dir) {
			return object.ID{}, fmt.Errorf("write checkpoint state: invalid file path %.80q", name)
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
	// The subdirectories are sorted so that equal files always result in the same objects in the same order.
	for _, dir := range slices.Sorted(maps.Keys(below)) {
		id, err := w.files(below[dir])
		if err != nil {
			return object.ID{}, err
		}
		entries = append(entries, object.TreeEntry{Name: dir, Mode: object.ModeDir, ID: id})
	}
	return w.add(object.Tree, EncodeTree(entries)), nil
}

// validFileName reports whether name is valid as one component of a path that git stores. It does not limit the length.
func validFileName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00") && !object.IsDotGit(name)
}

// errState means that a commit, or an object in its tree, does not have the form that EncodeState writes.
var errState = errors.New("invalid checkpoint state")

// ReadState reads the State that the commit id stores. It limits sizes and depths, because other users may write to the
// session remote from which the commit was fetched.
func ReadState(src Objects, f object.Format, id object.ID) (s State, err error) {
	defer func() {
		if err != nil {
			s, err = State{}, fmt.Errorf("read checkpoint state %s: %w", id, err)
		}
	}()
	content, err := typed(src, id, object.Commit, object.MaxCommitSize)
	if err != nil {
		return s, err
	}
	info, err := object.ParseCommit(f, content)
	if err != nil {
		return s, err
	}
	s.Left = parseLeft(content)
	entries, err := readTree(src, f, info.Tree)
	if err != nil {
		return s, err
	}
	for _, e := range entries {
		if err := s.read(src, f, e); err != nil {
			return s, fmt.Errorf("read entry %s of the state of a checkpoint: %w", e.Name, err)
		}
	}
	return s, nil
}

// readTree returns the entries of a tree object.
func readTree(src Objects, f object.Format, id object.ID) ([]object.TreeEntry, error) {
	content, err := typed(src, id, object.Tree, object.MaxTreeSize)
	if err != nil {
		return nil, err
	}
	return object.ParseTree(f, content)
}

// read decodes one entry of the tree that stores a State, and sets the fields of s. It ignores unknown entries, which a
// later version of artifactfs may have written.
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
	// The entries below are blobs with one text each.
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

// readTags reads the annotated tags in the tree id into the map tags. It verifies that the contents of each tag match
// the tag's ID.
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
		// Compute the ID, because the session remote may have stored the blob under a wrong name.
		is, err := object.Hash(f, object.Tag, content)
		if err != nil {
			return err
		}
		if e.Mode != object.ModeFile || is.String() != e.Name {
			return fmt.Errorf("%w: invalid tag %.80q", errState, e.Name)
		}
		tags[is] = content
	}
	return nil
}

// TagObjects returns the annotated tags of a State as objects that can be written to a repository.
func (s State) TagObjects(f object.Format) ([]odb.Outgoing, error) {
	var tags []odb.Outgoing
	for _, content := range s.Tags {
		o, err := Outgoing(f, object.Tag, content)
		if err != nil {
			return nil, fmt.Errorf("read tag of a checkpoint state: %w", err)
		}
		tags = append(tags, o)
	}
	return tags, nil
}

// readFiles reads the files in the tree id, which is the directory dir below stateFiles, into the map files by path.
// deep is the depth of the directory below stateFiles.
func readFiles(src Objects, f object.Format, id object.ID, dir string, files map[string]File, deep int) error {
	// Limit the depth of the recursion, because an attacker could nest trees too deeply on the session remote.
	if deep > maxStateDeep {
		return fmt.Errorf("%w: directories are nested too deeply", errState)
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
			return fmt.Errorf("%w: file %s has mode %o", errState, dir+e.Name, uint32(e.Mode))
		}
		content, err := typed(src, e.ID, object.Blob, maxStateText)
		if err != nil {
			return err
		}
		files[dir+e.Name] = File{Content: content, Exec: e.Mode == object.ModeExec}
	}
	return nil
}

// Package notes merges the git notes of several sessions.
package notes

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// prefix is the prefix of notes refs.
const prefix = "refs/notes/"

// maxNote is the maximum size of a note in bytes.
const maxNote = 16 << 20

// Merger merges git notes in the repository Repo. Only one goroutine may call Union at a time, because all merges use
// the same directory.
type Merger struct{ Repo *session.Repo }

// notesDir is the name of a temporary git directory inside the Repo, in which stock git merges notes. Git merges notes
// only in refs below refs/notes/, which in the Repo belong to the user, so the merge uses refs of its own.
const notesDir = "artifactfs.notes"

// Union merges the notes commits ours and theirs by git, and returns the merged commit. A note that both sides have
// changed is merged by mergeNote. Git writes the new objects to the Repo.
func (m Merger) Union(ctx context.Context, ours, theirs object.ID) (object.ID, error) {
	dir := filepath.Join(m.Repo.Dir(), notesDir)
	if err := os.RemoveAll(dir); err != nil { // a crash may have left the directory
		return object.ID{}, err
	}
	defer os.RemoveAll(dir)
	// The directory is a bare repository with two refs and the object format of the Repo.
	for name, text := range map[string]string{
		"HEAD": "ref: refs/heads/none\n", "config": gitcmd.BareConfig(m.Repo.Format()), prefix + "ours": ours.String() + "\n",
		prefix + "theirs": theirs.String() + "\n",
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return object.ID{}, err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return object.ID{}, err
		}
	}
	git := func(args ...string) (string, error) { return m.git(ctx, dir, args...) }
	_, err := git("notes", "--ref="+prefix+"ours", "merge", "-q", "-s", "manual", prefix+"theirs")
	// git notes merge leaves one file per conflicting note in NOTES_MERGE_WORKTREE.
	conflicts, readErr := os.ReadDir(filepath.Join(dir, "NOTES_MERGE_WORKTREE"))
	if err != nil && (readErr != nil || len(conflicts) == 0) {
		return object.ID{}, err
	}
	if err != nil {
		run := func(args ...string) ([]byte, error) {
			text, err := git(args...)
			return []byte(text), err
		}
		base, err := merge.Base(run, ours.String(), theirs.String())
		if err != nil { // objects of the history are missing: merge as if there were no common ancestor
			base = object.ID{}
		}
		for _, file := range conflicts {
			var sides [3][]byte
			for i, side := range []object.ID{base, ours, theirs} {
				if sides[i], err = m.note(side, file.Name()); err != nil {
					return object.ID{}, err
				}
			}
			merged := mergeNote(sides[0], sides[1], sides[2])
			if err := os.WriteFile(filepath.Join(dir, "NOTES_MERGE_WORKTREE", file.Name()), merged, 0o644); err != nil {
				return object.ID{}, err
			}
		}
		if _, err := git("notes", "merge", "-q", "--commit"); err != nil {
			return object.ID{}, err
		}
	}
	return session.NewRefDir(dir, m.Repo.Format()).Ref(prefix + "ours")
}

// note returns the note for one object in the notes commit tip, with a newline at its end, or nil if there is none.
// name is the id of the object in hexadecimal, which is also the path of the note in the tree. Git may divide the path
// into directories with names of two digits.
func (m Merger) note(tip object.ID, name string) ([]byte, error) {
	if tip.IsZero() {
		return nil, nil
	}
	c, err := m.Repo.Commit(tip)
	if err != nil {
		return nil, err
	}
	for tree := c.Tree; ; {
		entries, err := m.Repo.Tree(tree)
		if err != nil {
			return nil, err
		}
		// Find the note itself, or the directory whose name is the first two digits of name.
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool {
			return e.Name == name || e.Mode == object.ModeDir && len(e.Name) == 2 && strings.HasPrefix(name, e.Name)
		})
		if i < 0 {
			return nil, nil
		}
		if e := entries[i]; e.Mode == object.ModeDir {
			tree, name = e.ID, name[2:]
			continue
		}
		_, text, err := m.Repo.Get(entries[i].ID, maxNote)
		if err != nil {
			return nil, err
		}
		return append(bytes.TrimRight(text, "\n"), '\n'), nil
	}
}

// git runs a git command in the git directory dir, with the objects directory of the Repo. It returns the output
// without newlines at its end.
func (m Merger) git(ctx context.Context, dir string, args ...string) (string, error) {
	r := gitcmd.Repo{Dir: dir, Writes: filepath.Join(m.Repo.Dir(), "objects"), Base: gitcmd.IsolatedEnviron(),
		Options: []string{"-c", "core.fsync=all"}, Env: gitcmd.Identity()}
	out, err := r.Output(ctx, "", args...)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// mergeNote merges ours and theirs, two versions of a note that both differ from the version base. If all versions are
// JSON objects, as "artifactfs session note" writes them, it merges each member separately: a member that only one side
// has changed gets the value of that side, and a member that both sides have changed gets the value of ours. Any other
// note becomes the sorted union of the lines of both versions, as with "git notes merge -s cat_sort_uniq".
func mergeNote(base, ours, theirs []byte) []byte {
	var b, o, t map[string]json.RawMessage
	if json.Unmarshal(ours, &o) != nil || json.Unmarshal(theirs, &t) != nil || o == nil || t == nil ||
		len(base) > 0 && json.Unmarshal(base, &b) != nil {
		lines := slices.DeleteFunc(strings.Split(string(ours)+string(theirs), "\n"),
			func(line string) bool { return line == "" })
		slices.Sort(lines)
		return []byte(strings.Join(slices.Compact(lines), "\n") + "\n")
	}
	for name, value := range o {
		if was, ok := b[name]; !ok || !bytes.Equal(was, value) {
			t[name] = value
		}
	}
	// Remove each member that was removed in ours and is unchanged in theirs.
	for name, was := range b {
		if _, ok := o[name]; !ok && bytes.Equal(t[name], was) {
			delete(t, name)
		}
	}
	merged, err := json.Marshal(t)
	if err != nil { // decoded JSON can always be encoded
		return ours
	}
	return append(merged, '\n')
}

package readable

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// pathChange is a path that has different entries in two trees. An entry that does not exist is zero.
type pathChange struct {
	path     string
	old, new object.TreeEntry
}

// changes returns the files that differ between the trees from and to. path is the path of both trees, with a slash at
// its end. A tree that is not on this host counts as empty.
func (b *branch) changes(ctx context.Context, from, to object.ID) (list []pathChange) {
	read := func(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
		entries, _ := b.repo.Tree(id)
		return slices.DeleteFunc(entries, func(e object.TreeEntry) bool { return strings.EqualFold(e.Name, ".git") }), nil
	}
	_ = treediff.Trees(ctx, read, from, to, func(path string, old, now object.TreeEntry) error {
		list = append(list, pathChange{path, old, now})
		return nil
	}) // neither function returns an error
	return list
}

// text returns the text for an entry in state.Files: its mode and id.
func text(e object.TreeEntry) string { return fmt.Sprintf("%o %s", uint32(e.Mode), e.ID) }

// has reports whether the branch can contain the contents of an entry, and adds them if so. The contents must be on
// this host and not too large. whole states that they are not an old or new version of a changed file, so that git
// cannot store them as a delta; the total size of such contents is limited.
func (b *branch) has(e object.TreeEntry, whole bool) bool {
	if e.Mode == object.ModeGitlink {
		return true
	}
	t, n, err := b.repo.Size(e.ID)
	if err != nil || t != object.Blob || n > maxFile || !e.Mode.IsBlob() {
		return false
	}
	if whole && !b.repo.Owned(e.ID) {
		if b.whole -= n; b.whole < 0 {
			return false
		}
	}
	b.blobs[e.ID] = true
	return true
}

// move changes the files of the branch to those in the tree to, because HEAD of the session has changed. It adds a
// merge commit, so that git log -p does not show the differences as changes by the session.
func (b *branch) move(ctx context.Context, to object.ID, subject string) error {
	moved := false
	for _, c := range b.changes(ctx, parse(b.state.Tree), to) {
		if _, shown := b.state.Files[c.path]; !shown {
			continue
		}
		if moved = true; !c.new.ID.IsZero() && b.has(c.new, true) {
			b.state.Files[c.path] = text(c.new)
		} else {
			delete(b.state.Files, c.path)
		}
	}
	b.state.Tree = to.String()
	if !moved {
		return nil
	}
	return b.addMerge(subject)
}

// addMerge adds a merge commit, for which git log -p shows no differences.
func (b *branch) addMerge(subject string) error {
	parents := []string{b.state.Tip}
	if b.state.First != b.state.Tip {
		parents = append(parents, b.state.First)
	}
	return b.commit(parents, b.signature(), subject+"\n")
}

// signature returns the lines with the author and the committer for a commit that does not stand for one of the
// session. Its time is that of the checkpoint that is being added.
func (b *branch) signature() string {
	name := fmt.Sprintf("artifactfs <artifactfs@localhost> %d +0000\n", b.at.Unix())
	return "author " + name + "committer " + name
}

// step adds a commit that stands for a commit or checkpoint of the session with the tree to. message is a format with
// one verb, which is replaced by lines about the files that the commit cannot show.
func (b *branch) step(ctx context.Context, to object.ID, who, message string, store objects.Provider) error {
	list := b.changes(ctx, parse(b.state.Tree), to)
	var unowned []object.ID
	for _, c := range list[:min(len(list), maxPaths)] {
		for _, e := range []object.TreeEntry{c.old, c.new} {
			if e.Mode.IsBlob() && !b.repo.Owned(e.ID) {
				unowned = append(unowned, e.ID)
			}
		}
	}
	if store != nil && len(unowned) > 0 {
		if err := store.FromCache(ctx, unowned); err != nil {
			return err
		}
	}
	added := false
	for i, c := range list {
		_, shown := b.state.Files[c.path]
		if i < maxPaths && !shown && !c.old.ID.IsZero() && b.has(c.old, c.new.ID.IsZero()) {
			b.state.Files[c.path], added = text(c.old), true
		}
	}
	switch {
	case b.state.Tip == "":
		if err := b.commit(nil, b.signature(), "The changed files before session "+b.repo.Session()+"\n"); err != nil {
			return err
		}
		b.state.First = b.state.Tip
	case added:
		if err := b.addMerge("Further files before they are changed"); err != nil {
			return err
		}
	}
	var notes []string
	for i, c := range list {
		_, shown := b.state.Files[c.path]
		switch {
		case c.new.ID.IsZero():
			if delete(b.state.Files, c.path); !shown {
				notes = append(notes, "Removed: "+line(c.path))
			}
		case (i < maxPaths || shown) && b.has(c.new, c.old.ID.IsZero()):
			b.state.Files[c.path] = text(c.new)
		default:
			delete(b.state.Files, c.path)
			notes = append(notes, "Not shown: "+line(c.path))
		}
	}
	if more := len(notes) - maxNamed; more > 0 {
		notes = append(notes[:maxNamed], fmt.Sprintf("Not shown: %d more paths", more))
	}
	var lines string
	for _, note := range notes {
		lines += note + "\n"
	}
	b.state.Tree = to.String()
	return b.commit([]string{b.state.Tip}, who, fmt.Sprintf(message, lines))
}

// line returns a path without characters that would end a line of a message.
func line(path string) string { return strings.NewReplacer("\n", `\n`, "\x00", "").Replace(path) }

// transcript adds the records of the transcript of the session as files.
func (b *branch) transcript(ctx context.Context) error {
	tip, err := b.repo.Ref(session.TranscriptRef(b.repo.Session()))
	if err != nil || tip.IsZero() || tip.String() == b.state.Transcript || b.state.Tip == "" {
		return err
	}
	info, err := b.repo.Commit(tip)
	if err != nil {
		return err
	}
	for path := range b.state.Files {
		if strings.HasPrefix(path, recordsDir) {
			delete(b.state.Files, path)
		}
	}
	for _, c := range b.changes(ctx, object.ID{}, info.Tree) {
		if b.has(c.new, false) && !transcript.MemoryPath(c.path) {
			b.state.Files[recordsDir+c.path] = text(c.new)
		}
	}
	b.state.Transcript = tip.String()
	return b.commit([]string{b.state.Tip}, b.signature(), "Records of the work\n")
}

// commit adds a commit with the present files of the branch.
func (b *branch) commit(parents []string, who, message string) error {
	tree, err := b.writeTrees(nil)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&text, "parent %s\n", p)
	}
	text.WriteString(who + "\n" + strings.ReplaceAll(message, "\x00", ""))
	o, err := session.Outgoing(b.repo.Format(), object.Commit, text.Bytes())
	if err == nil {
		b.objects = append(b.objects, o)
		b.state.Tip = o.ID.String()
	}
	return err
}

// writeTrees makes the trees of the files of the branch, adds those that are not in b.trees to the new objects, and
// returns the root tree. If known is not nil, it only adds the ids of the trees to known.
func (b *branch) writeTrees(known map[object.ID]bool) (object.ID, error) {
	paths := slices.Sorted(maps.Keys(b.state.Files))
	var write func(prefix string, paths []string) (object.ID, error)
	write = func(prefix string, paths []string) (object.ID, error) {
		var entries []object.TreeEntry
		for len(paths) > 0 {
			name, _, below := strings.Cut(paths[0][len(prefix):], "/")
			if !below {
				var mode uint32
				var id string
				if _, err := fmt.Sscanf(b.state.Files[paths[0]], "%o %s", &mode, &id); err != nil {
					return object.ID{}, err
				}
				entries = append(entries, object.TreeEntry{Mode: object.Mode(mode), Name: name, ID: parse(id)})
				paths = paths[1:]
				continue
			}
			n := 0
			for n < len(paths) && strings.HasPrefix(paths[n], prefix+name+"/") {
				n++
			}
			id, err := write(prefix+name+"/", paths[:n])
			if err != nil {
				return id, err
			}
			entries = append(entries, object.TreeEntry{Mode: object.ModeDir, Name: name, ID: id})
			paths = paths[n:]
		}
		o, err := session.Outgoing(b.repo.Format(), object.Tree, session.EncodeTree(entries))
		if known != nil {
			known[o.ID] = true
		} else if !b.trees[o.ID] {
			b.trees[o.ID] = true
			b.objects = append(b.objects, o)
		}
		return o.ID, err
	}
	return write("", paths)
}

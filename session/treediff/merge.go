package treediff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// mostRenames is the maximum number of files added by one side whose contents are fetched for git's rename detection. To
// detect renames, git compares these files with the files that the same side removed and the other side changed.
const mostRenames = 200

// ContentsToMerge returns the IDs of the contents that git merge-tree reads when it merges the trees ours and theirs: the contents
// of paths that both sides changed since the tree base, and the contents that git compares to detect renames. The result complete
// is false if a side has added more than mostRenames files that may be renamed ones; ids then lacks contents of such files.
func ContentsToMerge(ctx context.Context, read Reader, base, ours, theirs object.ID) (ids []object.ID, complete bool, err error) {
	type side struct{ from, to object.TreeEntry }
	changes := [2]map[string]side{{}, {}}
	for i, tree := range []object.ID{ours, theirs} {
		err := Trees(ctx, read, base, tree, func(path string, from, to object.TreeEntry) error {
			changes[i][path] = side{from, to}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	seen := map[object.ID]bool{}
	add := func(entries ...object.TreeEntry) {
		for _, e := range entries {
			if e.Mode.IsBlob() && !seen[e.ID] {
				seen[e.ID] = true
				ids = append(ids, e.ID)
			}
		}
	}
	complete = true
	for i := range changes {
		renamed := false
		for path, c := range changes[i] {
			if o, both := changes[1-i][path]; both && (c.to != o.to) {
				add(c.from, c.to, o.to)
				// The other side changed a path that this side removed, so this side may have renamed it.
				renamed = renamed || c.to.Mode == 0
			}
		}
		added := 0
		for _, c := range changes[i] {
			// Git compares added files for renames only if this side has removed a file that the other side changed.
			if !renamed || c.from.Mode != 0 {
				continue
			}
			if added == mostRenames {
				complete = false
				break
			}
			add(c.to)
			added++
		}
	}
	return ids, complete, nil
}

// CommitsToMerge returns the objects that git merge-tree needs to merge the trees ours and theirs. Git finds the base of a merge
// through commits, so the objects are a root commit with the tree base, two commits with the trees ours and theirs and the root
// commit as parent, and the empty tree. The results us and them are the IDs of the commits with the trees ours and theirs.
func CommitsToMerge(f object.Format, base, ours, theirs object.ID) (objects []odb.Outgoing, us, them object.ID, err error) {
	commit := func(tree, parent object.ID) (object.ID, error) {
		id, err := object.ParseID(Name(f, tree))
		if err != nil {
			return id, err
		}
		// The time is fixed, so that the same trees always result in the same commits.
		c, err := session.NewCommit(f, id, parent, time.Unix(0, 0), "merge")
		objects = append(objects, c)
		return c.ID, err
	}
	root, err := commit(base, object.ID{})
	if err != nil {
		return nil, us, them, err
	}
	us, err1 := commit(ours, root)
	them, err2 := commit(theirs, root)
	empty, err3 := session.Outgoing(f, object.Tree, nil)
	return append(objects, empty), us, them, errors.Join(err1, err2, err3)
}

// Merged is the result of git merge-tree for two trees.
type Merged struct {
	Result    object.ID            // the merged tree; files with conflicts contain conflict markers
	Conflicts []session.IndexEntry // index entries of the paths with conflicts, with stages 1 to 3
	Messages  []string             // git's messages about the conflicts; none if there are no conflicts
}

// Merge merges two commits by git merge-tree. The function run runs git with arguments in a repository that has the commits, and returns
// its output. Git compares contents to detect renames, and would fetch missing ones one by one, so renames is false if some are missing.
func Merge(run func(args ...string) ([]byte, error), us, them object.ID, renames bool) (Merged, error) {
	out, err := run("-c", "merge.renames="+strconv.FormatBool(renames), "merge-tree", "--write-tree", "-z", "--messages",
		us.String(), them.String())
	if err != nil && !gitcmd.Exited(err, 1) { // exit status 1 reports conflicts
		return Merged{}, err
	}
	return ParseMerged(out)
}

// ParseMerged parses the output of `git merge-tree --write-tree -z`. The output is a list of strings that end with NUL: the
// ID of the merged tree, "MODE ID STAGE\tPATH" for each index entry of a path with a conflict, an empty string, and messages.
// A message consists of the number of its paths, the paths, a kind and a text.
func ParseMerged(out []byte) (m Merged, err error) {
	fields := strings.Split(string(out), "\x00")
	if m.Result, err = object.ParseID(fields[0]); err != nil {
		return m, fmt.Errorf("parse output of git merge-tree: %w", err)
	}
	rest := fields[1:]
	for len(rest) > 0 && rest[0] != "" {
		entry, path, ok := strings.Cut(rest[0], "\t")
		parts := strings.Fields(entry)
		if !ok || len(parts) != 3 {
			return m, fmt.Errorf("parse output of git merge-tree: %.80q", rest[0])
		}
		mode, err1 := strconv.ParseUint(parts[0], 8, 32)
		id, err2 := object.ParseID(parts[1])
		stage, err3 := strconv.ParseUint(parts[2], 10, 8)
		if err := errors.Join(err1, err2, err3); err != nil {
			return m, fmt.Errorf("parse output of git merge-tree: %w", err)
		}
		m.Conflicts = append(m.Conflicts, session.IndexEntry{Path: path, Mode: object.Mode(mode), ID: id, Stage: uint8(stage)})
		rest = rest[1:]
	}
	// An empty string separates the messages from the conflicts. Messages of a merge without conflicts are left out.
	for rest = rest[min(1, len(rest)):]; len(rest) > 2; {
		n, err := strconv.Atoi(rest[0])
		if err != nil || n < 0 || n+2 >= len(rest) {
			break
		}
		if text := strings.TrimSpace(rest[n+2]); len(m.Conflicts) > 0 && text != "" {
			m.Messages = append(m.Messages, text)
		}
		rest = rest[n+3:]
	}
	return m, nil
}

// Conflicted returns the paths that git could not merge, each once, in the order of m.Conflicts.
func (m Merged) Conflicted() []string {
	paths := []string{}
	for _, e := range m.Conflicts {
		if !slices.Contains(paths, e.Path) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// Name returns the ID of a tree in hexadecimal for git's command line. For a zero ID it returns the ID of the empty tree.
func Name(f object.Format, tree object.ID) string {
	if tree.IsZero() {
		empty, _ := object.Hash(f, object.Tree, nil)
		return empty.String()
	}
	return tree.String()
}

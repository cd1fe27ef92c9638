package promisor

import (
	"bufio"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// maxRenames bounds how often the history of a file is followed to another name in one prediction.
const maxRenames = 100

// maxGone bounds how many files one is compared with to find its old name.
const maxGone = 1000

// versions selects versions of files.
type versions struct {
	contents bool // any change; otherwise only changes that show a rename
	beside   bool // with the other files of the same commits
	sides    bool // also on branches that a merge did not take the file from
}

// histories adds the versions of files, back to where they appeared under another name, and the
// blobs that git compares to find that name. The next prediction continues from there when these
// have been fetched.
func (q *question) histories(v versions, revs, paths []string) error {
	for _, path := range paths {
		if err := q.history(v, revs, path); err != nil {
			return err
		}
	}
	return nil
}

// history is histories for one path. Each round covers the commits in which the file had one name.
func (q *question) history(v versions, revs []string, path string) error {
	for range maxRenames {
		born, err := q.versions(v, revs, path)
		if err != nil || born == "" {
			return err
		}
		from, err := q.renamed(born, path)
		if err != nil || from == "" {
			return err
		}
		// The parents of the commit that created the file have it under its old name.
		revs, path = []string{born + "^@"}, from
	}
	return nil
}

// versions adds the versions of a path and returns the commit that created it, or "". For merges it
// adds those that differ from all parents.
func (q *question) versions(v versions, revs []string, path string) (born string, err error) {
	args := []string{"log", "-c", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes", "--no-show-signature", logFormat}
	// With --full-diff, log prints all files of the commits that changed path.
	if v.beside {
		args = append(args, "--full-diff")
	}
	if v.sides {
		args = append(args, "--full-history")
	}
	args = append(append(args, revs...), "--", path)
	commit := ""
	err = q.quarantine.stream(q.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(id string) error { commit = id; return nil }, func(c change) error {
			if c.path == path && c.status == "A" {
				born = commit // the last one is the oldest
			}
			if !v.contents {
				return nil
			}
			return q.addSides(c)
		})
	})
	return born, err
}

// renamed returns the name that a path had before the commit in which it appeared, or "". If blobs
// that git has to compare are missing it adds them and returns "".
func (q *question) renamed(commit, path string) (from string, err error) {
	var come side
	var gone []change
	err = q.compare(commit+"^", commit, nil, func(c change) error {
		switch {
		case c.path == path:
			come = c.after
		case c.status == "D" && c.before[0].isBlob():
			gone = append(gone, c)
		}
		return nil
	})
	if err != nil || !come.isBlob() || len(gone) == 0 { // a commit without parents, for one
		return "", nil
	}
	// Rename detection reads all candidates. If some were missing, git would fetch them one by one.
	here := q.isLocal(come.id)
	for _, c := range gone {
		if c.before[0].id == come.id {
			return c.path, nil // moved as it was
		}
		here = here && q.isLocal(c.before[0].id)
		if err := q.addSides(c); err != nil {
			return "", err
		}
	}
	if !here {
		return "", nil
	}
	// git does not read the other files that appeared there, so they may be missing.
	args := []string{"--literal-pathspecs", "diff-tree", "-r", "-M", "-l0", "--raw", "-z", "--no-abbrev", commit + "^", commit, "--", path}
	for _, c := range gone[:min(len(gone), maxGone)] {
		args = append(args, c.path)
	}
	err = q.quarantine.stream(q.ctx, "", args, func(r *bufio.Reader) error {
		return readRenames(r, func(old, new string) error {
			if new == path {
				from = old
			}
			return nil
		})
	})
	return from, err
}

// readRenames is readChanges for names only. It reads the output of `git diff-tree -z` with -M, in
// which a rename has two paths.
func readRenames(r *bufio.Reader, each func(old, new string) error) error {
	for {
		token, err := r.ReadString(0)
		if err != nil {
			// A cut output ends the prediction, not the request.
			return nil
		}
		if !strings.HasPrefix(token, ":") {
			continue
		}
		old, err := r.ReadString(0)
		if err != nil {
			return nil
		}
		status := token[strings.LastIndexByte(token, ' ')+1:]
		if !strings.HasPrefix(status, "R") && !strings.HasPrefix(status, "C") {
			continue
		}
		new, err := r.ReadString(0)
		if err != nil {
			return nil
		}
		if err := each(strings.TrimSuffix(old, "\x00"), strings.TrimSuffix(new, "\x00")); err != nil {
			return err
		}
	}
}

// readStages reads the output of `git ls-files --stage -z`. An entry is "mode id stage", a tab, and
// the path.
func readStages(r *bufio.Reader, each func(path string, s side) error) error {
	for {
		line, err := r.ReadString(0)
		if err != nil {
			return nil
		}
		head, path, _ := strings.Cut(strings.TrimSuffix(line, "\x00"), "\t")
		fields := strings.Fields(head)
		if len(fields) != 3 {
			continue
		}
		if id, err := object.ParseID(fields[1]); err == nil {
			if err := each(path, side{fields[0], id}); err != nil {
				return err
			}
		}
	}
}

// emptyTree is the id of the tree without entries, which git knows without having it.
func (q *question) emptyTree() (string, error) {
	id, err := object.Hash(q.provider.Format(), object.Tree, nil)
	return id.String(), err
}

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

// versions says which versions of a file are read.
type versions struct {
	contents bool // any; otherwise only what tells where it was renamed
	beside   bool // with what was changed in the same commits
	sides    bool // also those of branches that added nothing to what a merge made of the file
}

// histories takes versions of files, back to where they appeared under another name, and what git compares there to find
// that name. Once it has come the next prediction goes on behind it.
func (q *question) histories(v versions, revs, paths []string) error {
	for _, path := range paths {
		if err := q.history(v, revs, path); err != nil {
			return err
		}
	}
	return nil
}

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
		revs, path = []string{born + "^@"}, from
	}
	return nil
}

// versions takes the versions of a path and gives the commit that made it out of nothing, or "". Of merges it takes what
// differs from all parents.
func (q *question) versions(v versions, revs []string, path string) (born string, err error) {
	args := []string{"log", "-c", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes", "--no-show-signature", logFormat}
	if v.beside {
		args = append(args, "--full-diff")
	}
	if v.sides {
		args = append(args, "--full-history")
	}
	args = append(append(args, revs...), "--", path)
	commit := ""
	err = q.lens.stream(q.ctx, "", args, func(r *bufio.Reader) error {
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

// renamed gives the name that a path had before a commit in which it appeared; "" if it had none, or if what git has to
// compare to know it is still missing, which is taken in then.
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
	here := q.here(come.id)
	for _, c := range gone {
		if c.before[0].id == come.id {
			return c.path, nil // moved as it was
		}
		here = here && q.here(c.before[0].id)
		if err := q.addSides(c); err != nil {
			return "", err
		}
	}
	if !here {
		return "", nil
	}
	// Of what else appeared there git reads nothing, and it may be missing.
	args := []string{"--literal-pathspecs", "diff-tree", "-r", "-M", "-l0", "--raw", "-z", "--no-abbrev", commit + "^", commit, "--", path}
	for _, c := range gone[:min(len(gone), maxGone)] {
		args = append(args, c.path)
	}
	err = q.lens.stream(q.ctx, "", args, func(r *bufio.Reader) error {
		return readRenames(r, func(old, new string) error {
			if new == path {
				from = old
			}
			return nil
		})
	})
	return from, err
}

// readRenames reads what readChanges does, for the names alone.
func readRenames(r *bufio.Reader, each func(old, new string) error) error {
	for {
		token, err := r.ReadString(0)
		if err != nil {
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

// readStages reads what `git ls-files --stage -z` prints.
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

package promisor

import (
	"bufio"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// maxRenames is the maximum number of times that one prediction follows the history of a file to an earlier name.
const maxRenames = 100

// maxGone is the maximum number of deleted files with which a file is compared to find its earlier name.
const maxGone = 1000

// versions selects which versions of a file are added to a prediction.
type versions struct {
	// true: add the versions in all commits that change the file; false: add the versions that rename detection reads
	contents bool
	beside   bool // true: also add the other files that the same commits change
	sides    bool // true: also add versions on branches from which a merge did not take the file
}

// histories adds the versions of each file in paths, back to the commit in which the file appeared, and continues with
// the file's name before that commit. If blobs that are needed to find the earlier name are missing, histories adds
// these blobs. The next request of the command then continues with the earlier name.
func (q *question) histories(v versions, revs, paths []string) error {
	for _, path := range paths {
		if err := q.history(v, revs, path); err != nil {
			return err
		}
	}
	return nil
}

// history does the same as histories for one path. Each iteration of its loop covers the commits in which the file has
// the same name.
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
		// In the parents of the commit in which the present name appeared, the file has its earlier name.
		revs, path = []string{born + "^@"}, from
	}
	return nil
}

// versions adds the versions of a path that the commits in revs contain. For a merge, it adds the version of the merge
// if this version differs from the versions in all parents. It returns the commit that created the path, or "" if revs
// contain no such commit.
func (q *question) versions(v versions, revs []string, path string) (born string, err error) {
	args := []string{"log", "-c", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes",
		"--no-show-signature", logFormat}
	// With --full-diff, git log prints all files that are changed by the commits that changed path.
	if v.beside {
		args = append(args, "--full-diff")
	}
	if v.sides {
		args = append(args, "--full-history")
	}
	args = append(append(args, revs...), "--", path)
	commit := ""
	err = q.repo.git.stream(q.repo.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(id string) error { commit = id; return nil }, func(c change) error {
			if c.path == path && c.status == "A" {
				born = commit // git log prints the oldest commit last
			}
			if !v.contents {
				return nil
			}
			return q.addSides(c)
		})
	})
	return born, err
}

// renamed returns the name that path had before the commit in which it appeared, or "" if the file is new in that
// commit. If blobs that git would compare to find the name are missing, renamed adds these blobs to the prediction and
// returns "".
func (q *question) renamed(commit, path string) (from string, err error) {
	var come side
	var gone []change
	err = q.repo.compare(commit+"^", commit, nil, func(c change) error {
		switch {
		case c.path == path:
			come = c.after
		case c.status == "D" && c.before[0].isBlob():
			gone = append(gone, c)
		}
		return nil
	})
	if err != nil || !come.isBlob() || len(gone) == 0 { // for example, a commit without parents
		return "", nil
	}
	// Rename detection reads all candidates. git would request the missing candidates one by one.
	here := q.isLocal(come.id)
	for _, c := range gone {
		if c.before[0].id == come.id {
			return c.path, nil // the file was renamed and its contents were not changed
		}
		here = here && q.isLocal(c.before[0].id)
		if err := q.addSides(c); err != nil {
			return "", err
		}
	}
	if !here {
		return "", nil
	}
	// git does not read the other files that the commit has added, so they may be missing.
	args := []string{"--literal-pathspecs", "diff-tree", "-r", "-M", "-l0", "--raw", "-z", "--no-abbrev", commit + "^",
		commit, "--", path}
	for _, c := range gone[:min(len(gone), maxGone)] {
		args = append(args, c.path)
	}
	err = q.repo.git.stream(q.repo.ctx, "", args, func(r *bufio.Reader) error {
		return readRenames(r, func(old, new string) error {
			if new == path {
				from = old
			}
			return nil
		})
	})
	return from, err
}

// readRenames reads the output of `git diff-tree -z -M`, in which a rename or a copy has two paths, and calls the
// function each with the old and the new name.
func readRenames(r *bufio.Reader, each func(old, new string) error) error {
	for {
		token, err := r.ReadString(0)
		if err != nil {
			// If the output is cut off, the prediction ends here. The request itself is still answered.
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

// readStages reads the output of `git ls-files --stage -z` and calls the function each for every entry. An entry is
// "mode id stage", a tab, and the path.
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

// Package merge finds the common ancestors of commits and merges commits, by git merge-base and git merge-tree.
package merge

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
)

// Run runs git with arguments in a repository, and returns its output. Errors are those of gitcmd.
type Run func(args ...string) ([]byte, error)

// Bases returns all best common ancestors of two commits, none if they have no common history. It returns an error for
// which gitcmd.Exited(err, 128) is true if the repository lacks one of the commits or their history.
func Bases(run Run, a, b string) ([]object.ID, error) {
	return bases(run, "--all", "--end-of-options", a, b)
}

// Base returns a best common ancestor of two or more commits, or the zero id if they have no common history. Errors are
// those of Bases.
func Base(run Run, commits ...string) (object.ID, error) {
	all, err := bases(run, append([]string{"--octopus", "--end-of-options"}, commits...)...)
	if err != nil || len(all) == 0 {
		return object.ID{}, err
	}
	return all[0], nil
}

func bases(run Run, args ...string) (all []object.ID, err error) {
	out, err := run(append([]string{"merge-base"}, args...)...)
	if gitcmd.Exited(err, 1) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(out)) {
		id, err := object.ParseID(name)
		if err != nil {
			return nil, fmt.Errorf("parse output of git merge-base: %w", err)
		}
		all = append(all, id)
	}
	return all, nil
}

// IsAncestor reports whether the commit ancestor is reachable from the other commit, or is the same commit. It returns
// the same errors as Bases.
func IsAncestor(run Run, ancestor, commit string) (bool, error) {
	_, err := run("merge-base", "--is-ancestor", "--end-of-options", ancestor, commit)
	if gitcmd.Exited(err, 1) {
		return false, nil
	}
	return err == nil, err
}

// Entry is an entry of the index for a path with a conflict.
type Entry struct {
	Path  string // path relative to the root of the tree
	Mode  object.Mode
	ID    object.ID
	Stage uint8 // version in the conflict: 1 is that of the merge base, 2 is ours, 3 is theirs
}

// Merged is the result of a merge.
type Merged struct {
	Result    object.ID // the merged tree; files with conflicts contain conflict markers
	Conflicts []Entry
	Messages  []string // git's messages about the conflicts; none if there are no conflicts
	contents  []string // paths whose contents git has merged, and not only chosen
}

// Renames returns the setting that turns the detection of renames on or off. git compares contents to detect renames,
// and would fetch missing ones one by one, so it is off if some are missing.
func Renames(on bool) string { return "merge.renames=" + strconv.FormatBool(on) }

// Commits merges two commits, as git merge does in a working tree of the commit ours with its .gitattributes files. The
// function run determines where the objects of the result are written, in which configuration git searches merge
// drivers, and which further attributes apply. It must name the git directory by an absolute path. The settings have
// the form NAME=VALUE and take precedence over those of the user. If contents of .gitattributes are missing, Commits
// returns the merge without attributes, and an error for which errors.Is(err, ErrAttributes) is true.
func Commits(run Run, ours, theirs string, settings ...string) (m Merged, err error) {
	// Attributes matter only for paths whose contents are merged. Usually there are none, so merge without attributes
	// first. From git 2.43 on, a bare repository would use those of HEAD without the setting.
	m, err = commits(run, nil, ours, theirs, append([]string{"attr.tree=" + ours}, settings...))
	if err != nil || len(m.contents) == 0 {
		return m, err
	}
	files, err := attributesFor(run, ours, m.contents)
	if err != nil || !decide(files) {
		return m, err
	}
	dir, remove, err := workTree(files)
	if err != nil {
		return Merged{}, err
	}
	m, err = commits(run, []string{"-C", dir, "--work-tree=" + dir}, ours, theirs, settings)
	return m, errors.Join(err, remove())
}

// commits merges two commits once, with further options of git.
func commits(run Run, options []string, ours, theirs string, settings []string) (Merged, error) {
	args := options
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	out, err := run(append(args, "merge-tree", "--write-tree", "-z", "--messages", ours, theirs)...)
	if err != nil && !gitcmd.Exited(err, 1) { // exit status 1 reports conflicts
		return Merged{}, err
	}
	return parse(out)
}

// autoMerging is the kind of git's message about a path whose contents it has merged.
const autoMerging = "Auto-merging"

// parse parses the output of `git merge-tree --write-tree -z`. The output is a list of strings that end with NUL: the
// ID of the merged tree, "MODE ID STAGE\tPATH" for each index entry of a path with a conflict, an empty string, and
// messages. A message consists of the number of its paths, the paths, a kind and a text.
func parse(out []byte) (m Merged, err error) {
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
		m.Conflicts = append(m.Conflicts, Entry{Path: path, Mode: object.Mode(mode), ID: id, Stage: uint8(stage)})
		rest = rest[1:]
	}
	// An empty string separates the messages from the conflicts. The texts of a merge without conflicts are left out.
	for rest = rest[min(1, len(rest)):]; len(rest) > 2; {
		n, err := strconv.Atoi(rest[0])
		if err != nil || n < 0 || n+2 >= len(rest) {
			break
		}
		if rest[n+1] == autoMerging {
			m.contents = append(m.contents, rest[1:n+1]...)
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

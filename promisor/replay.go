package promisor

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkoutOptions lists the options of checkout, switch, reset and read-tree whose value is the next argument.
var checkoutOptions = options{dropValue: []string{"-b", "-B", "-c", "-C", "--orphan", "--conflict",
	"--pathspec-from-file", "--prefix", "--index-output"}}

// checkout adds the files that differ between HEAD and the commit that the command changes to.
func (q *question) checkout(args []string) error {
	a := checkoutOptions.parse(args)
	revs, paths := q.resolve(a)
	if len(revs) == 0 {
		return nil
	}
	return q.overwritten("HEAD", revs[len(revs)-1], paths) // the last argument of read-tree is the new tree
}

// restore adds the files that `git restore` reads from the commit in --source. Without --source the command reads them
// from the index, and restore adds nothing.
func (q *question) restore(args []string) error {
	a := options{dropValue: []string{"-s", "--source", "--conflict", "--pathspec-from-file"}}.parse(args)
	source, ok := a.value("-s", "--source")
	revs := q.expand(source)
	if !ok || len(revs) == 0 {
		return nil
	}
	return q.overwritten("HEAD", revs[0], q.topPaths(append(a.plain, a.paths...)))
}

// bisect adds the blobs of the commit that `git bisect` checks out next. The arguments do not name this commit, but git
// has stored its id in a file.
func (q *question) bisect([]string) error {
	expected := q.note("", "BISECT_EXPECTED_REV")
	if expected == "" {
		return nil
	}
	return q.overwritten("HEAD", expected, nil)
}

// overwritten adds the blobs that a checkout of to writes, and those that it overwrites. git calls lstat on the
// overwritten files first, and the mount must fetch a file of unknown size to answer lstat.
func (q *question) overwritten(from, to string, paths []string) error {
	if err := q.compare(from, to, paths, q.addSides); err != nil {
		return err
	}
	return q.attributes(to)
}

// attributes adds the .gitattributes, .gitignore and .gitmodules files of a commit. git reads them one by one, from the
// index and from the working tree.
func (q *question) attributes(rev string) error {
	empty, err := q.emptyTree()
	if err != nil {
		return err
	}
	return q.compare(empty, rev, []string{":(glob)**/.gitattributes", ":(glob)**/.gitignore", ".gitmodules"}, q.addSides)
}

// changes returns the differences between two trees, by path.
func (q *question) changes(a, b string) (map[string]change, error) {
	all := map[string]change{}
	err := q.compare(a, b, nil, func(c change) error {
		all[c.path] = c
		return nil
	})
	return all, err
}

// mergeOptions lists the options of merge and pull whose value is the next argument.
var mergeOptions = options{dropValue: []string{"-m", "-F", "-s", "--strategy", "-X", "--strategy-option", "--file", "--into-name",
	"--cleanup", "--depth", "--upload-pack", "-o"}}

// merge adds the blobs that a merge with HEAD reads.
func (q *question) merge(args []string) error {
	a := mergeOptions.parse(args)
	words := a.plain
	if len(words) == 0 {
		words = []string{"@{upstream}"}
	}
	theirs, err := q.rev(words[0] + "^0")
	if err != nil { // the words of a pull are a remote and a branch, so the fetched commit is merged
		if theirs, err = q.rev("FETCH_HEAD^0"); err != nil {
			return err
		}
	}
	base, err := q.quarantine.output(q.ctx, "merge-base", "HEAD", theirs)
	if err != nil {
		return err
	}
	return q.join(strings.TrimSpace(base), "HEAD", theirs)
}

// join adds the blobs that a merge of two commits reads: those that are new in the working tree, all versions of files
// that both sides have changed, and those that rename detection reads.
func (q *question) join(base, ours, theirs string) error {
	if err := q.attributes(theirs); err != nil {
		return err
	}
	their, err := q.changes(base, theirs)
	if err != nil {
		return err
	}
	our, err := q.changes(base, ours)
	if err != nil {
		return err
	}
	// Rename detection runs on both sides.
	for _, pair := range [][2]map[string]change{{our, their}, {their, our}} {
		if err := q.moved(pair[0], pair[1]); err != nil {
			return err
		}
	}
	for path, c := range their {
		if o, both := our[path]; both {
			// Both sides have changed the file, so git merges the contents and reads all versions.
			if err := q.addAll([]change{c, o}); err != nil {
				return err
			}
		} else if err := q.addSides(c); err != nil {
			return err
		}
	}
	return nil
}

// moved adds the blobs that rename detection compares on one side: the files that this side has deleted although the
// other side has changed them, and, if there are any, all files that this side has created.
func (q *question) moved(side, other map[string]change) error {
	relevant := false
	for path, c := range side {
		if _, changed := other[path]; changed && c.status == "D" {
			relevant = true
			if err := q.addSides(c); err != nil {
				return err
			}
		}
	}
	if !relevant {
		return nil
	}
	for _, c := range side {
		if c.status == "A" {
			if err := q.addSides(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// pickOptions lists the options of cherry-pick and revert whose value is the next argument.
var pickOptions = options{dropValue: []string{"-m", "--mainline", "-s", "--strategy", "-X", "--strategy-option", "--cleanup"}}

// pick adds the blobs that git needs to apply the changes of commits to HEAD.
func (q *question) pick(args []string) error {
	a := pickOptions.parse(args)
	var revs []string
	for _, word := range a.plain {
		revs = append(revs, q.expand(word)...)
	}
	if len(revs) == 0 { // as with --continue
		revs = q.todo("sequencer")
	}
	commits := revs
	if slices.ContainsFunc(revs, isLeftOut) {
		out, err := q.quarantine.output(q.ctx, append([]string{"rev-list", "--no-merges"}, revs...)...)
		if err != nil {
			return err
		}
		commits = strings.Fields(out)
	}
	return q.replay(commits, "HEAD")
}

// replay adds the blobs that commits have changed, and those at the same paths in the commit onto, to which the changes
// are applied.
func (q *question) replay(commits []string, onto string) error {
	if len(commits) == 0 {
		return nil
	}
	touched := map[string]bool{}
	args := []string{"diff-tree", "--stdin", "-r", "-c", "--root", "--raw", "-z", "--no-renames", "--no-abbrev"}
	err := q.quarantine.stream(q.ctx, strings.Join(commits, "\n")+"\n", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return nil }, func(c change) error {
			touched[c.path] = true
			return q.addSides(c)
		})
	})
	if err != nil {
		return err
	}
	// The parent of the newest commit stands for the base of the commits, because HEAD may be any commit.
	return q.compare(commits[len(commits)-1]+"^", onto, nil, func(c change) error {
		if touched[c.path] {
			return q.addSides(c)
		}
		return nil
	})
}

// rebaseOptions lists the options of `git rebase` whose value is the next argument.
var rebaseOptions = options{dropValue: []string{"--onto", "-x", "--exec", "-s", "--strategy", "-X",
	"--strategy-option", "-C", "--whitespace", "--empty"}}

// rebase adds the blobs that `git rebase` needs to check out another commit and to apply commits to it. If a rebase is in
// progress, the remaining commits are read from its state files.
func (q *question) rebase(args []string) error {
	a := rebaseOptions.parse(args)
	// The remaining commits of an interrupted rebase are known, whatever the arguments are.
	if commits := q.todo("rebase-merge"); len(commits) > 0 {
		onto := q.note("rebase-merge", "onto")
		if onto == "" {
			onto = "HEAD"
		}
		return q.onto(commits, onto, q.note("rebase-merge", "orig-head"))
	}
	upstream, head := "@{upstream}", "HEAD"
	if len(a.plain) > 0 {
		upstream = a.plain[0]
	}
	if len(a.plain) > 1 {
		head = a.plain[1]
	}
	from, err := q.rev(upstream + "^0")
	if err != nil {
		return err
	}
	tip, err := q.rev(head + "^0")
	if err != nil {
		return err
	}
	target := from
	if name, ok := a.value("--onto"); ok {
		if target, err = q.rev(name + "^0"); err != nil {
			return err
		}
	}
	// Merges are left out, as git rebase does without --rebase-merges.
	out, err := q.quarantine.output(q.ctx, "rev-list", "--no-merges", tip, "^"+from)
	if err != nil {
		return err
	}
	return q.onto(strings.Fields(out), target, tip)
}

// onto adds the blobs for the checkout of onto, which replaces tip, and those that are needed to apply the commits to it.
func (q *question) onto(commits []string, onto, tip string) error {
	if tip != "" {
		if err := q.overwritten(tip, onto, nil); err != nil {
			return err
		}
	}
	return q.replay(commits, onto)
}

// note reads an object id from a state file that a command has stored in the git directory. It returns "" if the file
// does not exist or contains something other than an id.
func (q *question) note(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(q.quarantine.gitDir, dir, name))
	// git writes an id and a newline into the file. A larger file was written by another program.
	if err != nil || len(text) > 1<<20 {
		return ""
	}
	id := strings.TrimSpace(string(text))
	if strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id
}

// todo returns the commits that a rebase, or a sequence of picks, still has to apply, the newest first.
func (q *question) todo(dir string) []string {
	name := "git-rebase-todo"
	if dir == "sequencer" {
		name = "todo"
	}
	text, err := os.ReadFile(filepath.Join(q.quarantine.gitDir, dir, name))
	if err != nil || len(text) > 1<<20 {
		return nil
	}
	var short []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !slices.Contains([]string{"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "revert"},
			fields[0]) {
			continue
		}
		// An option may precede the id: "fixup -C <id>".
		id := fields[1]
		if strings.HasPrefix(id, "-") && len(fields) > 2 {
			id = fields[2]
		}
		if strings.Trim(id, "0123456789abcdef") == "" {
			short = append(short, id)
		}
	}
	if len(short) == 0 {
		return nil
	}
	// The file contains abbreviated ids.
	out, err := q.quarantine.output(q.ctx, append([]string{"rev-parse"}, short...)...)
	if err != nil {
		return nil
	}
	commits := strings.Fields(out)
	slices.Reverse(commits)
	return commits
}

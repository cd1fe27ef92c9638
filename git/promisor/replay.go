package promisor

import (
	"bufio"
	"slices"
	"strings"
)

// checkoutOptions lists the options of checkout, switch, reset and read-tree whose value is the next argument.
var checkoutOptions = options{dropValue: []string{"-b", "-B", "-c", "-C", "--orphan", "--conflict",
	"--pathspec-from-file", "--prefix", "--index-output"}}

// checkout adds the files that differ between HEAD and the commit to which the command moves HEAD.
func (q *question) checkout(args []string) error {
	a := checkoutOptions.parse(args)
	revs, paths := q.repo.resolve(a)
	if len(revs) == 0 {
		return nil
	}
	return q.overwritten("HEAD", revs[len(revs)-1], paths) // for read-tree, the last argument is the new tree
}

// restore adds the files that `git restore` reads from the commit in --source. Without --source the command reads them
// from the index, and restore adds nothing.
func (q *question) restore(args []string) error {
	a := options{dropValue: []string{"-s", "--source", "--conflict", "--pathspec-from-file"}}.parse(args)
	source, ok := a.value("-s", "--source")
	revs := q.repo.expand(source)
	if !ok || len(revs) == 0 {
		return nil
	}
	return q.overwritten("HEAD", revs[0], q.repo.topPaths(append(a.plain, a.paths...)))
}

// bisect adds the blobs of the commit that `git bisect` checks out next. The arguments do not name this commit, but git
// has stored its id in a file.
func (q *question) bisect([]string) error {
	expected := q.repo.note("", "BISECT_EXPECTED_REV")
	if expected == "" {
		return nil
	}
	return q.overwritten("HEAD", expected, nil)
}

// overwritten adds the blobs that a checkout writes, which are those of the commit in the parameter to, and the blobs
// that it overwrites, which are those at the same paths in the commit in the parameter from. git first calls lstat on
// the overwritten files. To answer lstat for a file of unknown size, the mount must fetch the file.
func (q *question) overwritten(from, to string, paths []string) error {
	if err := q.repo.compare(from, to, paths, q.addSides); err != nil {
		return err
	}
	return q.attributes(to)
}

// attributes adds the .gitattributes, .gitignore and .gitmodules files of a commit. git reads them one by one, from the
// index and from the working tree.
func (q *question) attributes(rev string) error {
	empty, err := q.repo.emptyTree()
	if err != nil {
		return err
	}
	return q.repo.compare(empty, rev, []string{":(glob)**/.gitattributes", ":(glob)**/.gitignore", ".gitmodules"},
		q.addSides)
}

// mergeOptions lists the options of merge and pull whose value is the next argument.
var mergeOptions = options{dropValue: []string{"-m", "-F", "-s", "--strategy", "-X", "--strategy-option", "--file",
	"--into-name",
	"--cleanup", "--depth", "--upload-pack", "-o"}}

// merge adds the blobs that a merge with HEAD reads.
func (q *question) merge(args []string) error {
	a := mergeOptions.parse(args)
	words := a.plain
	if len(words) == 0 {
		words = []string{"@{upstream}"}
	}
	theirs, err := q.repo.rev(words[0] + "^0")
	if err != nil { // the arguments of `git pull` are a remote and a branch, so use the fetched commit
		if theirs, err = q.repo.rev("FETCH_HEAD^0"); err != nil {
			return err
		}
	}
	base, err := q.repo.git.output(q.repo.ctx, "merge-base", "HEAD", theirs)
	if err != nil {
		return err
	}
	return q.join(strings.TrimSpace(base), "HEAD", theirs)
}

// join adds the blobs that a merge of two commits reads: the blobs that are new in the working tree, all versions of
// files that both sides have changed, and the blobs that rename detection reads.
func (q *question) join(base, ours, theirs string) error {
	if err := q.attributes(theirs); err != nil {
		return err
	}
	their, err := q.repo.changes(base, theirs)
	if err != nil {
		return err
	}
	our, err := q.repo.changes(base, ours)
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
			// If both sides have changed the file, git merges the contents and reads all versions.
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
// other side has changed them, and, if there are such files, all files that this side has created.
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
var pickOptions = options{dropValue: []string{"-m", "--mainline", "-s", "--strategy", "-X",
	"--strategy-option", "--cleanup"}}

// pick adds the blobs that git needs to apply the changes of commits to HEAD.
func (q *question) pick(args []string) error {
	a := pickOptions.parse(args)
	var revs []string
	for _, word := range a.plain {
		revs = append(revs, q.repo.expand(word)...)
	}
	if len(revs) == 0 { // the arguments contain no revisions, for example with --continue
		revs = q.repo.todo("sequencer")
	}
	commits := revs
	if slices.ContainsFunc(revs, isLeftOut) {
		out, err := q.repo.git.output(q.repo.ctx, append([]string{"rev-list", "--no-merges"}, revs...)...)
		if err != nil {
			return err
		}
		commits = strings.Fields(out)
	}
	return q.replay(commits, "HEAD")
}

// replay adds to the question the blobs that git needs to apply commits on top of the commit onto: the blobs that the
// commits have changed, and the blobs at the same paths in onto.
func (q *question) replay(commits []string, onto string) error {
	if len(commits) == 0 {
		return nil
	}
	touched := map[string]bool{}
	args := []string{"diff-tree", "--stdin", "-r", "-c", "--root", "--raw", "-z", "--no-renames", "--no-abbrev"}
	err := q.repo.git.stream(q.repo.ctx, strings.Join(commits, "\n")+"\n", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return nil }, func(c change) error {
			touched[c.path] = true
			return q.addSides(c)
		})
	})
	if err != nil {
		return err
	}
	// Compare with the parent of the newest commit, which stands for the base of the commits, because HEAD may be any
	// commit.
	return q.repo.compare(commits[len(commits)-1]+"^", onto, nil, func(c change) error {
		if touched[c.path] {
			return q.addSides(c)
		}
		return nil
	})
}

// rebaseOptions lists the options of `git rebase` whose value is the next argument.
var rebaseOptions = options{dropValue: []string{"--onto", "-x", "--exec", "-s", "--strategy", "-X",
	"--strategy-option", "-C", "--whitespace", "--empty"}}

// rebase adds the blobs that `git rebase` needs to check out another commit and to apply commits to it. If a rebase is
// in progress, the remaining commits are read from its state files.
func (q *question) rebase(args []string) error {
	a := rebaseOptions.parse(args)
	// If a rebase was interrupted, its state files list the remaining commits, and the arguments are ignored.
	if commits := q.repo.todo("rebase-merge"); len(commits) > 0 {
		onto := q.repo.note("rebase-merge", "onto")
		if onto == "" {
			onto = "HEAD"
		}
		return q.onto(commits, onto, q.repo.note("rebase-merge", "orig-head"))
	}
	upstream, head := "@{upstream}", "HEAD"
	if len(a.plain) > 0 {
		upstream = a.plain[0]
	}
	if len(a.plain) > 1 {
		head = a.plain[1]
	}
	from, err := q.repo.rev(upstream + "^0")
	if err != nil {
		return err
	}
	tip, err := q.repo.rev(head + "^0")
	if err != nil {
		return err
	}
	target := from
	if name, ok := a.value("--onto"); ok {
		if target, err = q.repo.rev(name + "^0"); err != nil {
			return err
		}
	}
	// Leave out merges, as git rebase does without --rebase-merges.
	out, err := q.repo.git.output(q.repo.ctx, "rev-list", "--no-merges", tip, "^"+from)
	if err != nil {
		return err
	}
	return q.onto(strings.Fields(out), target, tip)
}

// The method onto adds the blobs for the checkout of the commit in the parameter onto, which replaces the commit tip,
// and the blobs that are needed to apply the given commits to it.
func (q *question) onto(commits []string, onto, tip string) error {
	if tip != "" {
		if err := q.overwritten(tip, onto, nil); err != nil {
			return err
		}
	}
	return q.replay(commits, onto)
}

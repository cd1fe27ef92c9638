package promisor

import (
	"path"
	"slices"
)

// diffOptions are the options of `git diff` and of the commands that it is made of whose value is the next argument.
var diffOptions = options{keep: []string{"--cached", "--staged"}, dropValue: walkOptions.dropValue}

// showsNames are the options with which `git diff` prints no contents. It reads contents only to find renames.
var showsNames = []string{"--name-only", "--name-status", "--raw", "--quiet"}

// diff adds the versions of files that differ between two trees, or between a tree and HEAD, which stands for the index and the working
// tree.
func (q *question) diff(args []string) error {
	a := diffOptions.parse(args)
	revs, paths := q.repo.resolve(a)
	included := slices.DeleteFunc(slices.Clone(revs), isLeftOut)
	left := slices.IndexFunc(revs, isLeftOut)
	from, to := "HEAD", "HEAD"
	switch {
	case left >= 0 && len(included) == 2: // A...B stands for B, A and ^BASE
		from, to = revs[left][1:], included[0]
	case left >= 0 && len(included) == 1: // A..B
		from, to = revs[left][1:], included[0]
	case len(included) >= 2:
		from, to = included[0], included[1]
	case len(included) == 1:
		from = included[0]
	case !a.has("--cached", "--staged"):
		return nil // which files of the working tree differ from the index is not known here
	}
	candidates := &renameCandidates{q: q}
	each := func(c change) error {
		if a.has(showsNames...) && !a.has("-p", "-u", "--patch", "--stat") {
			candidates.note(c)
			return nil
		}
		return q.addSides(c)
	}
	var err error
	if a.has("--cached", "--staged") {
		err = q.repo.staged(from, paths, each)
	} else {
		err = q.repo.compare(from, to, paths, each)
	}
	if err == nil {
		err = candidates.add()
	}
	return err
}

// renameCandidates collects the changes that rename detection compares: the files that are deleted and those that are created, if there
// are both.
type renameCandidates struct {
	q          *question
	gone, come []change
}

// note records a change.
func (r *renameCandidates) note(c change) {
	switch c.status {
	case "D":
		r.gone = append(r.gone, c)
	case "A":
		r.come = append(r.come, c)
	}
}

// add adds the versions of the recorded changes to the prediction, and forgets them.
func (r *renameCandidates) add() (err error) {
	if len(r.gone) > 0 && len(r.come) > 0 {
		err = r.q.addAll(append(r.gone, r.come...))
	}
	r.gone, r.come = r.gone[:0], r.come[:0]
	return err
}

// worktree adds all files of the commit that `git worktree add` checks out.
func (q *question) worktree(args []string) error {
	if len(args) == 0 || args[0] != "add" {
		return nil
	}
	a := options{dropValue: []string{"-b", "-B", "--reason"}}.parse(args[1:])
	if a.has("--no-checkout") || len(a.plain) == 0 {
		return nil
	}
	rev := "HEAD"
	if len(a.plain) > 1 {
		rev = a.plain[1]
	} else if base := path.Base(a.plain[0]); !a.has("-b", "-B", "-d", "--detach") && len(q.repo.expand(base)) > 0 {
		rev = base // a branch with the name of the directory
	}
	return q.trees(q.repo.expand(rev), nil)
}

// clone adds all files of HEAD, which `git clone` checks out.
func (q *question) clone(args []string) error {
	if slices.ContainsFunc(args, func(s string) bool { return s == "--bare" || s == "--mirror" || s == "-n" || s == "--no-checkout" }) {
		return nil
	}
	return q.trees([]string{"HEAD"}, nil)
}

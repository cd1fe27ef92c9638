package promisor

import (
	"bufio"
	"slices"
	"strings"
)

// plans maps the name of a git command to its plan, the function that predicts the objects that the command will need.
// A command whose plan is nil requests all objects that it needs at once.
var plans map[string]func(q *question, args []string) error

func init() { // plans is set in init, because the functions refer to plans
	plans = map[string]func(q *question, args []string) error{
		"log": (*question).log, "whatchanged": (*question).log, "show": (*question).show,
		"format-patch": (*question).formatPatch,
		"blame":        (*question).blame, "annotate": (*question).blame,
		"grep": (*question).grep, "archive": (*question).archive, "ls-tree": (*question).listTree,
		"merge": (*question).merge, "pull": (*question).merge, "rebase": (*question).rebase,
		"cherry-pick": (*question).pick, "revert": (*question).pick,
		"checkout": (*question).checkout, "switch": (*question).checkout, "reset": (*question).checkout,
		"restore":   (*question).restore,
		"read-tree": (*question).checkout,
		"diff":      nil, "diff-tree": nil, "diff-index": nil, "diff-files": nil, "stash": nil, "worktree": nil,
		"bisect": (*question).bisect,
		"clone":  nil, "commit": nil, "status": nil, "add": nil,
		"checkout-index": nil, "update-index": nil, "am": nil, "apply": nil, "sparse-checkout": nil, "submodule": nil,
	}
}

const (
	// firstWalk and firstRange are the numbers of blobs that are added to the first request of a command. firstWalk
	// applies to a walk through all history, of which a user reads one page after the other; firstRange applies to a
	// limited set of commits.
	firstWalk  = 400
	firstRange = 8000
)

// walkOptions are the options of log and similar commands that select commits and that control the output about each
// commit.
var walkOptions = options{
	keep: []string{
		"--all", "--branches", "--tags", "--remotes", "--glob", "--exclude", "--not", "--merges", "--no-merges",
		"--first-parent",
		"--exclude-first-parent-only", "--min-parents", "--max-parents", "--no-min-parents", "--no-max-parents", "--reverse",
		"--date-order",
		"--author-date-order", "--topo-order", "--full-history", "--dense", "--sparse", "--simplify-merges",
		"--simplify-by-decoration",
		"--show-pulls", "--ancestry-path", "--boundary", "--no-walk", "--do-walk", "--left-only", "--right-only",
		"--left-right",
		"--remove-empty", "--all-match", "--invert-grep", "-i", "--regexp-ignore-case", "--basic-regexp", "-E",
		"--extended-regexp", "-F",
		"--fixed-strings", "-P", "--perl-regexp", "-m", "-c", "--cc", "--diff-merges", "--root", "-g",
		"--walk-reflogs", "--reflog",
		"--full-diff", "--branches", "--literal-pathspecs",
	},
	keepValue: []string{
		"-n", "--max-count", "--skip", "--since", "--after", "--until", "--before", "--since-as-filter", "--author",
		"--committer", "--grep",
		"--grep-reflog", "--diff-filter", "--max-age", "--min-age",
	},
	dropValue: []string{
		"-S", "-G", "-L", "-O", "-U", "--unified", "--output", "--inter-hunk-context", "-l", "--src-prefix", "--dst-prefix",
		"--line-prefix",
		"--word-diff-regex", "--diff-algorithm", "--anchored", "--encoding", "-I", "--find-object", "--date", "-o",
		"--output-directory",
		"--start-number", "--in-reply-to", "--suffix", "--to", "--add-header", "--rotate-to", "--skip-to", "--stat-width",
		"--stat-name-width", "--stat-count", "--stat-graph-width", "--filename-max-length", "--base", "--interdiff",
	},
}

// showsContents are the options that make git log read the contents of files.
var showsContents = []string{
	"-p", "-u", "--patch", "--stat", "--numstat", "--shortstat", "--dirstat", "-X", "--cumulative", "--dirstat-by-file",
	"--patch-with-stat",
	"--patch-with-raw", "--compact-summary", "--check", "-S", "-G", "--pickaxe-all", "--cc", "-c", "-W",
	"--function-context", "-U",
	"--unified", "--word-diff", "--color-words", "--binary", "--summary", "--find-copies-harder", "-C",
	"--find-copies", "-B", "--remerge-diff",
}

// log adds the versions of files that `git log` compares. If an option shows contents, log adds all versions; otherwise
// it adds the versions that rename detection reads.
func (q *question) log(args []string) error {
	a := walkOptions.parse(args)
	revs, paths := q.repo.resolve(a)
	// With -L, git reads every version of the file, also versions on branches from which a merge did not take the file.
	if lines := lineRanges(a); len(lines) > 0 {
		return q.histories(versions{contents: true, sides: true}, revs, q.repo.topPaths(lines))
	}
	contents := a.has(showsContents...)
	if a.has("--follow") && len(paths) == 1 {
		return q.histories(versions{contents: contents}, revs, paths)
	}
	_, bounded := a.value("-n", "--max-count")
	bounded = bounded || slices.ContainsFunc(a.flags, isCount) || slices.ContainsFunc(revs, isLeftOut) ||
		a.has("--no-walk")
	q.allow(firstWalk)
	// A limited walk is predicted as a whole. For an unlimited walk the prediction is shorter, because the user usually
	// reads the first pages and stops.
	if bounded || len(paths) > 0 {
		q.allow(firstRange)
	}
	want := onlyRenames
	if contents {
		want = everything
	}
	return q.walk(a.flags, revs, paths, want)
}

// isLeftOut reports whether the revision rev excludes commits, because it begins with ^.
func isLeftOut(rev string) bool { return strings.HasPrefix(rev, "^") }

// lineRanges returns the files in -L options, which have the form "start,end:file" or ":function:file".
func lineRanges(a arguments) []string {
	var files []string
	for _, arg := range a.all {
		if v, ok := strings.CutPrefix(arg, "-L"); ok {
			if at := strings.LastIndexByte(v, ':'); at >= 0 {
				files = append(files, v[at+1:])
			}
		}
	}
	return files
}

// show adds the versions of files that `git show` compares.
func (q *question) show(args []string) error {
	a := walkOptions.parse(args)
	revs, paths := q.repo.resolve(a)
	flags := a.flags
	if !a.has("-m", "-c", "--cc", "--diff-merges", "--first-parent") {
		flags = append(flags, "-c") // for a merge, show the files that differ from all parents
	}
	if !a.has("--do-walk") && !slices.ContainsFunc(revs, isLeftOut) {
		flags = append(flags, "--no-walk")
	}
	q.allow(firstRange)
	return q.walk(flags, revs, paths, everything)
}

// formatPatch adds the versions that `git format-patch` compares. A single revision stands for the commits since that
// revision.
func (q *question) formatPatch(args []string) error {
	a := walkOptions.parse(args)
	revs, paths := q.repo.resolve(a)
	_, counted := a.value("-n", "--max-count")
	if len(revs) == 1 && !counted && !slices.ContainsFunc(a.flags, isCount) && !a.has("--root") {
		revs = []string{"^" + revs[0], "HEAD"}
	}
	q.allow(firstRange)
	return q.walk(append(a.flags, "--no-merges"), revs, paths, everything)
}

// Values of the parameter what of walk. everything selects all versions in each change. onlyRenames selects the
// versions that rename detection reads: the files that a commit deletes and creates, if the commit does both.
const (
	everything = iota
	onlyRenames
)

// walk adds the versions of files from the changes of commits, in the order of git log. The parameter what is
// everything or onlyRenames.
func (q *question) walk(flags, revs, paths []string, what int) error {
	args := append([]string{"log", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-notes", "--no-show-signature",
		logFormat}, flags...)
	args = append(append(append(args, revs...), "--"), paths...)
	var gone, come []change
	// Collect the changes of one commit, because rename detection reads the files if the commit deletes some files and
	// creates others, and not otherwise.
	flush := func() (err error) {
		if len(gone) > 0 && len(come) > 0 {
			err = q.addAll(append(gone, come...))
		}
		gone, come = gone[:0], come[:0]
		return err
	}
	err := q.repo.git.stream(q.repo.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return flush() }, func(c change) error {
			switch {
			case what == everything:
				return q.addSides(c)
			case c.status == "D":
				gone = append(gone, c)
			case c.status == "A":
				come = append(come, c)
			}
			return nil
		})
	})
	if err == nil {
		err = flush()
	}
	return err
}

// addAll adds the versions before and after each change.
func (q *question) addAll(changes []change) error {
	for _, c := range changes {
		if err := q.addSides(c); err != nil {
			return err
		}
	}
	return nil
}

// blameOptions lists the options of `git blame` whose value is the next argument.
var blameOptions = options{dropValue: []string{"-L", "-S", "--contents", "--since", "--ignore-rev",
	"--ignore-revs-file", "--date", "--abbrev"}}

// blame adds the whole history of a file. With -C it also adds the other files that were changed in the same commits.
func (q *question) blame(args []string) error {
	a := blameOptions.parse(args)
	words := append(slices.Clone(a.plain), a.paths...)
	if len(words) == 0 {
		return nil
	}
	var revs []string
	file := words[len(words)-1]
	if len(words) == 2 && !a.split && len(q.repo.expand(words[0])) == 0 && len(q.repo.expand(words[1])) > 0 {
		// the user has passed the arguments in the old order, in which the file is first
		words[0], words[1] = words[1], words[0]
		file = words[1]
	}
	for _, word := range words[:len(words)-1] {
		revs = append(revs, q.repo.expand(word)...)
	}
	return q.histories(versions{contents: true, beside: a.has("-C")}, revs, q.repo.topPaths([]string{file}))
}

// grepOptions lists the options of `git grep` that determine which files are searched, and the options that have a
// value.
var grepOptions = options{
	keep: []string{"--cached", "--untracked", "--no-index"},
	dropValue: []string{"-e", "-f", "-A", "-B", "-C", "-m", "--max-count", "--max-depth", "--threads", "-O",
		"--after-context",
		"--before-context", "--context", "--parent-basename"},
}

// grep adds the files of the trees, or of the index, that `git grep` searches. A search of the working tree needs no
// prediction, because git reads its files through the mount.
func (q *question) grep(args []string) error {
	a := grepOptions.parse(args)
	if !a.has("-e", "-f") && len(a.plain) > 0 {
		a.plain = a.plain[1:] // the first argument is the pattern
	}
	revs, paths := q.repo.resolve(a)
	if len(revs) == 0 && a.has("--cached") {
		return q.index(paths)
	}
	return q.trees(revs, paths)
}

// archiveOptions lists the options of `git archive` whose value is the next argument.
var archiveOptions = options{dropValue: []string{"--format", "--prefix", "-o", "--output", "--add-file",
	"--add-virtual-file", "--mtime", "--remote", "--exec"}}

// archive adds all files of the tree that `git archive` writes.
func (q *question) archive(args []string) error {
	revs, paths := q.repo.resolve(archiveOptions.parse(args))
	return q.trees(revs[:min(1, len(revs))], paths)
}

// listTree adds the files of the tree if `git ls-tree` prints their sizes, for which git has to read them.
func (q *question) listTree(args []string) error {
	a := options{}.parse(args)
	revs, paths := q.repo.resolve(a)
	if !a.has("-l", "--long", "--format") {
		return nil
	}
	return q.trees(revs[:min(1, len(revs))], paths)
}

// trees adds to the question all files at the paths in the trees of the revisions revs.
func (q *question) trees(revs, paths []string) error {
	// A comparison with the empty tree lists every file as added.
	empty, err := q.repo.emptyTree()
	if err != nil {
		return err
	}
	for _, rev := range revs {
		err := q.repo.compare(empty, rev, paths, q.addSides)
		if err != nil {
			return err
		}
	}
	return nil
}

// index adds all files of the index that match paths.
func (q *question) index(paths []string) error {
	args := append([]string{"ls-files", "--stage", "-z", "--"}, paths...)
	return q.repo.git.stream(q.repo.ctx, "", args, func(r *bufio.Reader) error {
		return readStages(r, func(_ string, s side) error { return q.add(s) })
	})
}

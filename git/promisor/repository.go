package promisor

import (
	"bufio"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// repository answers the questions that a prediction has about the mount's repository: the revisions and paths in the
// arguments of a command, the differences between trees, and the commits that an interrupted command still has to
// apply. To answer these questions, it runs git in a guarded directory. Each prediction has its own repository and uses
// it in one goroutine, so a repository needs no lock.
type repository struct {
	ctx     context.Context // context of the prediction
	git     *guardedGit
	format  object.Format
	command Command // the command whose requests are predicted
}

// resolve divides the arguments that are not options into revisions and paths, by git's rules: the revisions come
// first, and if there is no "--", the first word that is not a revision is the first path. The result revs holds object
// ids; an id to exclude begins with ^. The paths are relative to the top directory.
func (r *repository) resolve(a arguments) (revs, paths []string) {
	paths = a.paths
	for i, word := range a.plain {
		ids := r.expand(word)
		// Without "--", the first word that does not name a revision is a path, and all later words are also paths.
		if len(ids) == 0 && !a.split {
			paths = a.plain[i:]
			break
		}
		revs = append(revs, ids...)
	}
	return revs, r.topPaths(paths)
}

// expand returns the ids for which word stands if it is a revision or a range; otherwise it returns nil.
func (r *repository) expand(word string) []string {
	// git rev-parse would take an argument that starts with a dash for an option.
	if word == "" || word[0] == '-' {
		return nil
	}
	out, err := r.git.output(r.ctx, "rev-parse", "--revs-only", "--end-of-options", word)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(out), func(s string) bool { return s[0] == '-' })
}

// topPaths converts pathspecs to pathspecs relative to the top directory. If a pathspec cannot be converted, topPaths
// returns nil, which stands for all paths.
func (r *repository) topPaths(paths []string) []string {
	var tops []string
	for _, p := range paths {
		// ":/" stands for the top directory. If the command was started in the top directory, other pathspecs with magic are
		// passed on unchanged.
		if rest, ok := strings.CutPrefix(p, ":/"); ok {
			p = rest
		} else if strings.HasPrefix(p, ":") {
			if r.command.Prefix == "" {
				tops = append(tops, p)
				continue
			}
			return nil
		} else if filepath.IsAbs(p) {
			rel, err := filepath.Rel(r.command.Dir, p)
			if err != nil {
				return nil
			}
			p = rel
		} else {
			slash := strings.HasSuffix(p, "/")
			if p = path.Join(r.command.Prefix, p); slash {
				p += "/"
			}
		}
		// A path outside the working tree, or the top directory itself, does not restrict anything.
		if p == "" || p == "." || strings.HasPrefix(p, "..") {
			return nil
		}
		tops = append(tops, p)
	}
	return tops
}

// alias replaces a command that is an alias in the user's configuration by the command for which the alias stands, with
// its arguments. It returns other commands unchanged.
func (r *repository) alias(name string, args []string) (string, []string) {
	// A name that is empty or contains one of these characters cannot be a key of the configuration.
	if name == "" || strings.ContainsAny(name, "\n\x00.") {
		return name, args
	}
	value, err := r.git.userConfig(r.ctx, "alias."+name)
	words := strings.Fields(value)
	// An alias that starts with "!" is a shell command.
	if err != nil || len(words) == 0 || strings.HasPrefix(value, "!") {
		return name, args
	}
	return Subcommand(append(append([]string{"git"}, words...), args...))
}

// emptyTree returns the id of the tree without entries. git can read this tree even if the object is not stored.
func (r *repository) emptyTree() (string, error) {
	id, err := object.Hash(r.format, object.Tree, nil)
	return id.String(), err
}

// rev returns the id of the commit or other object to which name refers. It returns an error if name does not refer to
// an object.
func (r *repository) rev(name string) (string, error) {
	if id := r.git.rev(r.ctx, name); id != "" {
		return id, nil
	}
	return "", fmt.Errorf("find revision %q: no such revision", name)
}

// compare calls the function each for every difference between the trees a and b, restricted to paths. Instead of a
// tree, a or b may be a commit.
func (r *repository) compare(a, b string, paths []string, each func(change) error) error {
	args := append([]string{"diff-tree", "-r", "--raw", "-z", "--no-renames", "--no-abbrev", a, b, "--"}, paths...)
	return r.git.stream(r.ctx, "", args, func(r *bufio.Reader) error {
		return readChanges(r, func(string) error { return nil }, each)
	})
}

// commit returns the id of the commit to which name refers. An empty name stands for HEAD.
func (r *repository) commit(name string) (string, error) {
	if name == "" {
		name = "HEAD"
	}
	id := r.git.rev(r.ctx, name+"^{commit}")
	if id == "" {
		return "", fmt.Errorf("find revision %q: %w", name, ErrRevision)
	}
	return id, nil
}

// changes returns the differences between two trees, by path.
func (r *repository) changes(a, b string) (map[string]change, error) {
	all := map[string]change{}
	err := r.compare(a, b, nil, func(c change) error {
		all[c.path] = c
		return nil
	})
	return all, err
}

// note reads an object id that a git command has stored in the file called name, in the subdirectory dir of the git
// directory. It returns "" if the file does not exist or contains no id.
func (r *repository) note(dir, name string) string {
	text, err := disk.ReadRegular(filepath.Join(r.git.gitDir, dir, name), disk.SmallFile)
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

// todo returns the commits that a rebase, or a sequence of cherry-picks or reverts, still has to apply, the newest
// first.
func (r *repository) todo(dir string) []string {
	name := "git-rebase-todo"
	if dir == "sequencer" {
		name = "todo"
	}
	text, err := disk.ReadRegular(filepath.Join(r.git.gitDir, dir, name), disk.SmallFile)
	if err != nil || len(text) > 1<<20 {
		return nil
	}
	var short []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 ||
			!slices.Contains([]string{"pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "revert"},
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
	out, err := r.git.output(r.ctx, append([]string{"rev-parse"}, short...)...)
	if err != nil {
		return nil
	}
	commits := strings.Fields(out)
	slices.Reverse(commits)
	return commits
}

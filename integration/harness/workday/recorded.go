package workday

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recorded returns the newest checkpoint in the lanes of a session, as stock git reads it from a repository
// (doc/internals/sessions/checkpoints.md). The field Status of s is not set, because it depends on the files.
func recorded(ctx context.Context, repo, session string) (id string, s State, err error) {
	var failed error
	git := func(args ...string) string {
		out, err := run(ctx, repo, nil, append([]string{"git", "--git-dir=" + repo}, args...)...)
		if err != nil && failed == nil {
			failed = err
		}
		return out
	}
	commit := ""
	for _, ref := range lines(git("for-each-ref",
		"--format=%(objectname) %(contents:trailers:key=Afs-Checkpoint,valueonly,separator=)", "refs/afs/j/"+session+"/")) {
		if c, ulid, _ := strings.Cut(ref, " "); ulid > id {
			id, commit = ulid, c
		}
	}
	if failed != nil || commit == "" {
		return "", s, failed
	}
	parents := strings.Fields(git("log", "-1", "--format=%P", commit))
	if s.Tree, err = filesOf(ctx, repo, commit); err != nil {
		return "", s, err
	}
	if failed != nil || len(parents) == 0 {
		return id, s, failed
	}
	state := parents[len(parents)-1]
	there := map[string]bool{}
	for _, name := range lines(git("ls-tree", "--name-only", state)) {
		there[name] = true
	}
	text := func(name string) []string {
		if !there[name] {
			return nil
		}
		return lines(git("cat-file", "blob", state+":"+name))
	}
	for _, line := range text("head") {
		if name, ok := strings.CutPrefix(line, "ref: "); ok {
			s.Branch = name
		} else {
			s.Head = line
		}
	}
	s.Refs, s.Stashes = text("refs"), text("stashes")
	type entry struct {
		path  string
		stage int
		line  string
	}
	var index []entry
	special := map[string]bool{}
	for _, line := range text("special") {
		var e struct {
			Path                                   []byte
			Mode                                   uint32
			ID                                     string
			Stage                                  int
			AssumeValid, SkipWorktree, IntentToAdd bool
		}
		line = strings.NewReplacer(`"assume_valid"`, `"AssumeValid"`, `"skip_worktree"`, `"SkipWorktree"`, `"intent_to_add"`,
			`"IntentToAdd"`).Replace(line)
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return id, s, fmt.Errorf("read special index entries of %s: %w", id, err)
		}
		tag := "H"
		switch {
		case e.Stage > 0:
			tag = "M"
		case e.SkipWorktree:
			tag = "S"
		}
		if e.AssumeValid {
			tag = strings.ToLower(tag)
		}
		if e.IntentToAdd {
			e.ID = digest(nil)
		}
		special[string(e.Path)] = true
		index = append(index, entry{string(e.Path), e.Stage,
			fmt.Sprintf("%s %o %s %d\t%s", tag, e.Mode, e.ID, e.Stage, e.Path)})
	}
	if there["index"] {
		for _, line := range lines(git("-c", "core.quotePath=false", "ls-tree", "-r", state+":index")) {
			about, path, _ := strings.Cut(line, "\t")
			fields := strings.Fields(about)
			if !special[path] {
				index = append(index, entry{path, 0, fmt.Sprintf("H %s %s 0\t%s", fields[0], fields[2], path)})
			}
		}
	}
	slices.SortFunc(index, func(a, b entry) int { return cmp.Or(cmp.Compare(a.path, b.path), a.stage-b.stage) })
	for _, e := range index {
		s.Index = append(s.Index, e.line)
	}
	if there["git"] {
		for _, name := range lines(git("-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", state+":git")) {
			top, _, _ := strings.Cut(name, "/")
			if !slices.Contains(underWay, top) {
				continue
			}
			size := git("cat-file", "-s", state+":git/"+name)
			content, err := exact(ctx, repo, state+":git/"+name)
			if err != nil || fmt.Sprint(len(content)) != size {
				return id, s, fmt.Errorf("read %s of %s: %d of %s bytes: %w", name, id, len(content), size, err)
			}
			s.Operation = append(s.Operation, fmt.Sprintf("%s %x", name, sha256.Sum256(content)))
		}
	}
	return id, s, failed
}

// asRecorded returns a description of the differences between the restored State s and the State is that its checkpoint
// contains, or "" if there are none.
func (s State) asRecorded(is State) string {
	is.Status, s.Status = nil, nil
	for _, list := range []*[]string{&s.Refs, &is.Refs, &s.Operation, &is.Operation} {
		*list = slices.Sorted(slices.Values(*list))
	}
	return s.Differs(is)
}

// filesOf returns the ID of a tree of a repository without its empty directories, which stock git does not support. It
// builds the index from a list of files, because after git read-tree the index would contain the ID of the tree, and
// git write-tree would return this ID.
func filesOf(ctx context.Context, repo, tree string) (string, error) {
	scratch, err := os.MkdirTemp("", "workday-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	env := []string{"GIT_DIR=" + repo, "GIT_INDEX_FILE=" + filepath.Join(scratch, "index")}
	if _, err := run(ctx, repo, env, "sh", "-c", `git ls-tree -rz "$0" >"$1" && git update-index -z --index-info <"$1"`,
		tree, filepath.Join(scratch, "files")); err != nil {
		return "", err
	}
	return run(ctx, repo, env, "git", "write-tree", "--missing-ok")
}

// filesOfCheckpoint returns the ID of the tree of a checkpoint without its empty directories, like filesOf. dir is the
// mount of the session that has the checkpoint.
func filesOfCheckpoint(ctx context.Context, dir, tree string) (string, error) {
	common, err := run(ctx, dir, nil, "git", "rev-parse", "--path-format=absolute", "--git-common-dir")
	if err != nil {
		return "", err
	}
	return filesOf(ctx, filepath.Join(filepath.Dir(common), "session.git"), tree)
}

package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// operation are the files and directories (with a slash behind) of the git directory that say what git is in the middle
// of, and what the user has set for this working tree.
var operation = []string{
	"MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "MERGE_RR", "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD",
	"BISECT_ANCESTORS_OK", "BISECT_EXPECTED_REV", "BISECT_FIRST_PARENT", "BISECT_LOG", "BISECT_NAMES", "BISECT_RUN", "BISECT_START", "BISECT_TERMS", "BISECT_HEAD",
	"rebase-merge/", "rebase-apply/", "sequencer/", "info/exclude", "info/sparse-checkout",
}

const (
	maxOperationFile  = 16 << 20 // bytes; larger ones are left out
	maxOperationFiles = 20_000
)

// gitState is what git has beside the files.
type gitState struct {
	session.State
	stat    fileStat    // of the index
	head    object.ID   // tree of Head
	tips    []object.ID // of all that the State names
	parents []object.ID // those of them that are owned
}

// readState reads what git has beside the files, in a moment in which HEAD and refs stay.
func (c *Capturer) readState(ctx context.Context, out *output, copies *session.Copier) (gitState, error) {
	for try := 0; ; try++ {
		before, err := c.readRefs()
		if err != nil {
			return gitState{}, fmt.Errorf("read git directory: %w", err)
		}
		s := before
		if !s.Head.IsZero() {
			if info, err := c.o.Repo.Commit(s.Head); err == nil {
				s.head = info.Tree
			}
		}
		if s.Index, s.stat, err = c.readIndex(ctx, out, copies, s.head); err != nil {
			return gitState{}, err
		}
		if s.Files, err = c.readFiles(); err != nil {
			return gitState{}, fmt.Errorf("read git directory: %w", err)
		}
		after, err := c.readRefs()
		if err != nil {
			return gitState{}, fmt.Errorf("read git directory: %w", err)
		}
		same := after.Head == before.Head && after.Branch == before.Branch && slices.Equal(after.Refs, before.Refs) && slices.Equal(after.Stashes, before.Stashes)
		if !same && try < 3 { // git was at work in between; what it does last is in the next checkpoint
			continue
		}
		return s, c.readTips(ctx, &s, copies)
	}
}

func (c *Capturer) readRefs() (gitState, error) {
	var s gitState
	var err error
	if s.Branch, s.Head, err = c.refs.Head(); err != nil {
		return s, err
	}
	all, err := c.refs.Refs("refs/")
	if err != nil {
		return s, err
	}
	for _, r := range all {
		r.Peeled = object.ID{}
		switch {
		case strings.HasPrefix(r.Name, "refs/remotes/"):
			s.Remote = append(s.Remote, r)
		case strings.HasPrefix(r.Name, "refs/heads/"), strings.HasPrefix(r.Name, "refs/tags/"), strings.HasPrefix(r.Name, "refs/notes/"):
			s.Refs = append(s.Refs, r)
		case r.Name == "refs/stash":
			s.Refs = append(s.Refs, r)
			if s.Stashes, err = c.readStashes(r); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// readStashes reads the log of refs/stash, a line for each: "OLD NEW WHO\tMESSAGE" (gitrepository-layout).
func (c *Capturer) readStashes(newest packedrefs.Ref) ([]session.Stash, error) {
	text, err := os.ReadFile(filepath.Join(c.o.GitDir, "logs", "refs", "stash"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	list := parseStashLog(c.format, text)
	if len(list) == 0 || list[0].Commit != newest.ID { // somebody made it without a log
		list = append([]session.Stash{{Commit: newest.ID}}, list...)
	}
	return list, nil
}

// parseStashLog gives the stashes of a log, newest first; lines that git would not write count for nothing.
func parseStashLog(f object.Format, text []byte) []session.Stash {
	var list []session.Stash
	for line := range strings.Lines(string(text)) {
		head, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		fields := strings.Fields(head)
		if len(fields) < 2 {
			continue
		}
		id, err := object.ParseID(fields[1])
		if err != nil || id.Format() != f {
			continue
		}
		list = append(list, session.Stash{Commit: id, Message: message})
	}
	slices.Reverse(list)
	return list
}

// readFiles reads the files of an operation under way.
func (c *Capturer) readFiles() (map[string]session.File, error) {
	files := map[string]session.File{}
	read := func(name string) error {
		path := filepath.Join(c.o.GitDir, filepath.FromSlash(name))
		st, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (!st.Mode().IsRegular() || st.Size() > maxOperationFile || len(files) >= maxOperationFiles) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files[name] = session.File{Content: content, Exec: st.Mode()&0o100 != 0}
		return err
	}
	for _, name := range operation {
		dir, isDir := strings.CutSuffix(name, "/")
		if !isDir {
			if err := read(name); err != nil {
				return nil, err
			}
			continue
		}
		root := filepath.Join(c.o.GitDir, dir)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() || strings.HasSuffix(path, ".lock") {
				return err
			}
			rel, err := filepath.Rel(c.o.GitDir, path)
			if err != nil {
				return err
			}
			return read(filepath.ToSlash(rel))
		})
		if err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(filepath.Join(c.o.GitDir, "config"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if kept := keptConfig(text); len(kept) > 0 {
		files["config"] = session.File{Content: kept}
	}
	return files, nil
}

// branchKeys are what is kept of the settings of a branch; others may name commands.
var branchKeys = []string{"remote", "merge", "rebase", "pushremote", "description"}

// keptConfig is what a configuration says of branches, and of who commits; of one that cannot be read, nothing.
func keptConfig(text []byte) []byte {
	all := config.New()
	if err := config.NewDecoder(bytes.NewReader(text)).Decode(all); err != nil {
		return nil
	}
	kept := config.New()
	for _, b := range all.Section("branch").Subsections {
		for _, o := range b.Options {
			if slices.Contains(branchKeys, strings.ToLower(o.Key)) && !hasSecret(o.Value) {
				kept.AddOption("branch", b.Name, strings.ToLower(o.Key), o.Value)
			}
		}
	}
	for _, key := range []string{"name", "email"} {
		if all.Section("user").HasOption(key) {
			kept.AddOption("user", "", key, all.Section("user").Option(key))
		}
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(kept); err != nil {
		return nil
	}
	return b.Bytes()
}

// hasSecret says whether a value is a URL with somebody's name or more in it: a branch may follow one.
func hasSecret(value string) bool {
	_, rest, ok := strings.Cut(value, "://")
	host, _, _ := strings.Cut(rest, "/")
	return ok && strings.Contains(host, "@")
}

// readTips collects the objects that were made here and that the State names, and says which commits become parents.
func (c *Capturer) readTips(ctx context.Context, s *gitState, copies *session.Copier) error {
	seen := map[object.ID]bool{}
	add := func(id object.ID) {
		if !id.IsZero() && !seen[id] {
			seen[id] = true
			s.tips = append(s.tips, id)
		}
	}
	add(s.Head)
	for _, stash := range s.Stashes {
		add(stash.Commit)
	}
	for _, r := range s.Refs {
		add(r.ID)
	}
	for name, f := range s.Files {
		if !strings.HasSuffix(name, "_HEAD") && !slices.Contains([]string{"rebase-merge/onto", "rebase-merge/orig-head", "rebase-apply/onto", "rebase-apply/orig-head"}, name) {
			continue
		}
		for line := range strings.Lines(string(f.Content)) {
			if id, err := object.ParseID(strings.TrimSpace(line)); err == nil && id.Format() == c.format {
				add(id)
			}
		}
	}
	slices.SortFunc(s.tips, object.ID.Compare) // so that the same state is the same commit
	made := map[object.ID]bool{}
	for _, id := range s.tips {
		if c.settled[id] {
			continue
		}
		if c.o.Repo.Owned(id) {
			made[id] = true
			continue
		}
		if c.o.Repo.Remotes(id) {
			c.settled[id] = true
			continue
		}
		err := copies.Commits(ctx, []object.ID{id})
		if err != nil {
			if id == s.Head {
				return err
			}
			c.settled[id] = true // git forgets what nobody needs any more, ORIG_HEAD of long ago; tags of the remote were not fetched
			continue
		}
		made[id] = true
	}
	for _, id := range s.tips {
		if !made[id] {
			continue
		}
		if err := c.readTip(ctx, id, s, copies); err != nil {
			return err
		}
	}
	return nil
}

// mostNested bounds tags of tags.
const mostNested = 16

// readTip has the State lead to what was made here and has a name. A commit becomes a parent; a tag becomes a part of it,
// and what it names a parent: the ref may be carried away later than the checkpoint, or never.
func (c *Capturer) readTip(ctx context.Context, id object.ID, s *gitState, copies *session.Copier) error {
	for range mostNested {
		t, _, err := c.o.Repo.Size(id)
		if err != nil || t != object.Commit && t != object.Tag {
			return nil
		}
		if t == object.Commit {
			if !slices.Contains(s.parents, id) { // a branch names it, too
				s.parents = append(s.parents, id)
			}
			return nil
		}
		_, content, err := c.o.Repo.Get(id, object.MaxCommitSize)
		if errors.Is(err, odb.ErrTooLarge) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read tag %s: %w", id, err)
		}
		if s.Tags == nil {
			s.Tags = map[object.ID][]byte{}
		}
		s.Tags[id] = content
		if id, _, err = object.ParseTagTarget(c.format, content); err != nil || c.o.Repo.Remotes(id) && !c.o.Repo.Owned(id) {
			return nil
		}
		if copies.Commits(ctx, []object.ID{id}) != nil { // what it names is gone, for git, too
			return nil
		}
	}
	return nil
}

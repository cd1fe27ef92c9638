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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// operation lists the files and directories of the git directory that checkpoints record: those of an operation in
// progress, such as a merge, and the user's settings for the working tree. The names of directories end in a slash.
var operation = []string{
	"MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "MERGE_RR", "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD",
	"REBASE_HEAD", "ORIG_HEAD",
	"BISECT_ANCESTORS_OK", "BISECT_EXPECTED_REV", "BISECT_FIRST_PARENT", "BISECT_LOG", "BISECT_NAMES", "BISECT_RUN",
	"BISECT_START", "BISECT_TERMS", "BISECT_HEAD",
	"rebase-merge/", "rebase-apply/", "sequencer/", "info/exclude", "info/sparse-checkout",
}

const (
	maxOperationFile  = 16 << 20 // maximum size of one file in bytes; larger files are not recorded
	maxOperationFiles = 20_000   // maximum number of recorded files
)

// gitState is the part of a checkpoint that git stores outside of the working tree, in the git directory.
type gitState struct {
	session.State
	stat fileStat    // attributes of the index file
	head object.ID   // tree of the commit State.Head
	tips []object.ID // all objects that State names by id
	// commits that were created in the session; they become parents of the commit that stores the state
	parents []object.ID
}

// readState reads git's state. If HEAD or refs changed during the reading, it reads again, up to three times.
func (c *Capturer) readState(ctx context.Context, out *output, copier *session.Copier) (gitState, error) {
	if isIncomplete(c.o.GitDir) {
		if s, known, err := c.lastState(out); known || err != nil {
			return s, errors.Join(err, c.readTips(ctx, &s, copier))
		}
	}
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
		if s.Index, s.stat, err = c.readIndex(ctx, out, copier, s.head); err != nil {
			return gitState{}, err
		}
		rootReader{c, out, copier}.all(ctx)
		if s.Files, err = c.readFiles(); err != nil {
			return gitState{}, fmt.Errorf("read git directory: %w", err)
		}
		after, err := c.readRefs()
		if err != nil {
			return gitState{}, fmt.Errorf("read git directory: %w", err)
		}
		same := after.Head == before.Head && after.Branch == before.Branch && slices.Equal(after.Refs, before.Refs) &&
			slices.Equal(after.Stashes, before.Stashes)
		// A git command has changed refs during the reading. If this was the last attempt, the next checkpoint records the
		// command's result.
		if !same && try < 3 {
			continue
		}
		return s, c.readTips(ctx, &s, copier)
	}
}

// isIncomplete reports whether a git directory has no HEAD: it is being created, could not be created, or has lost its
// index. Git does not accept such a directory as a repository. If its index is missing, this does not mean that the
// user has removed all files from the index.
func isIncomplete(gitDir string) bool {
	_, err := os.Lstat(filepath.Join(gitDir, "HEAD"))
	return errors.Is(err, fs.ErrNotExist)
}

// lastState returns the newest git state that is known without reading the git directory: that of the newest
// checkpoint, otherwise that of the checkpoint from which the mount was resumed, otherwise that of the new mount. known
// is false if there is none.
func (c *Capturer) lastState(out *output) (s gitState, known bool, err error) {
	p, have := c.Last()
	if !have {
		p, have = startCheckpoint(c.o.Repo, c.o.BaseTree)
	}
	s.stat = fileStat{Ino: -1} // no file has a negative inode number, so the next checkpoint reads the index
	switch b := c.o.InitialState; {
	case have:
		if s.State, err = c.o.Repo.State(p); err != nil {
			return s, false, fmt.Errorf("read state of checkpoint %s: %w", p.ID, err)
		}
		info, err := c.o.Repo.Commit(p.State)
		if err != nil {
			return s, false, fmt.Errorf("read state of checkpoint %s: %w", p.ID, err)
		}
		// Left and Dirs describe the files of that checkpoint, not git's state.
		s.Left, s.Dirs, s.parents = nil, nil, slices.Clone(info.Parents)
		if _, own := c.Last(); !own {
			s.State = c.o.startHead(s.State)
		}
	case b == nil:
		return s, false, nil
	default:
		s.Branch, s.Head, s.Index.Tree = b.Branch, b.Commit, b.Tree
		for _, name := range []string{b.Branch, b.Mounted} {
			if name != "" && !b.Commit.IsZero() {
				s.Refs = append(s.Refs, packedrefs.Ref{Name: name, ID: b.Commit})
			}
		}
		sortRefs(s.Refs)
		if b.Tree.IsZero() {
			if s.Index.Tree, err = out.tree(nil); err != nil {
				return s, false, err
			}
		}
	}
	if info, err := c.o.Repo.Commit(s.Head); err == nil {
		s.head = info.Tree
	}
	return s, true, nil
}

// startHead returns the state of a new git directory that starts from the checkpoint state s: HEAD points to o.Branch,
// which is a branch at the same commit, or is detached if o.Detach is set.
func (o Options) startHead(s session.State) session.State {
	if o.Branch == "" && !o.Detach {
		return s
	}
	s.Branch = o.Branch
	if o.Branch != "" && !s.Head.IsZero() {
		s.Refs = slices.DeleteFunc(slices.Clone(s.Refs), func(r packedrefs.Ref) bool { return r.Name == o.Branch })
		s.Refs = append(s.Refs, packedrefs.Ref{Name: o.Branch, ID: s.Head})
		sortRefs(s.Refs)
	}
	return s
}

// sortRefs sorts refs by their names.
func sortRefs(refs []packedrefs.Ref) {
	slices.SortFunc(refs, func(a, b packedrefs.Ref) int { return strings.Compare(a.Name, b.Name) })
}

// readRefs returns a state in which only HEAD, the refs and the stashes are set, as they are in the git directory now.
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
		// The file packed-refs stores the targets of tags, but loose refs do not. Drop the targets, so that a ref compares as
		// equal in both forms.
		r.Peeled = object.ID{}
		switch {
		case strings.HasPrefix(r.Name, "refs/remotes/"):
			s.Remote = append(s.Remote, r)
		case strings.HasPrefix(r.Name, "refs/heads/"), strings.HasPrefix(r.Name, "refs/tags/"),
			strings.HasPrefix(r.Name, "refs/notes/"):
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

// readStashes reads the stashes from the reflog of refs/stash, which has one stash per line: "OLD NEW WHO\tMESSAGE"
// (gitrepository-layout(5)). The parameter newest is the ref refs/stash.
func (c *Capturer) readStashes(newest packedrefs.Ref) ([]session.Stash, error) {
	text, err := disk.ReadRegular(filepath.Join(c.o.GitDir, "logs", "refs", "stash"), disk.LargeFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	list := parseStashLog(c.format, text)
	// The commands `git stash store` and `git update-ref` can set refs/stash without a reflog entry. If the log lacks the
	// value of the ref, add it to the list.
	if len(list) == 0 || list[0].Commit != newest.ID {
		list = append([]session.Stash{{Commit: newest.ID}}, list...)
	}
	return list, nil
}

// parseStashLog returns the stashes of a log, newest first. It ignores malformed lines.
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
	// git appends to the log, so the newest stash is the last line.
	slices.Reverse(list)
	return list
}

// readFiles returns the files of the git directory that checkpoints record, by name: those that the variable operation
// lists, and the part of the configuration that portableConfig returns.
func (c *Capturer) readFiles() (map[string]session.File, error) {
	files, err := readOperation(c.o.GitDir)
	if err != nil {
		return nil, err
	}
	text, err := disk.ReadRegular(filepath.Join(c.o.GitDir, "config"), disk.SmallFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Other settings may contain credentials and commands, so they are not recorded.
	if kept := portableConfig(text); len(kept) > 0 {
		files["config"] = session.File{Content: kept}
	}
	return files, nil
}

// readOperation returns the contents of the files that the variable operation lists, by name. gitDir is the git
// directory of the main or of a linked working tree.
func readOperation(gitDir string) (map[string]session.File, error) {
	files := map[string]session.File{}
	read := func(name string) error {
		path := filepath.Join(gitDir, filepath.FromSlash(name))
		st, err := os.Lstat(path)
		// Git may finish the operation and remove its files while they are read.
		if errors.Is(err, fs.ErrNotExist) || err == nil &&
			(!st.Mode().IsRegular() || st.Size() > maxOperationFile || len(files) >= maxOperationFiles) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := disk.ReadRegular(path, maxOperationFile)
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
		root := filepath.Join(gitDir, dir)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			// Lock files are not part of git's state.
			if err != nil || d.IsDir() || strings.HasSuffix(path, ".lock") {
				return err
			}
			rel, err := filepath.Rel(gitDir, path)
			if err != nil {
				return err
			}
			return read(filepath.ToSlash(rel))
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// branchKeys lists the settings of a branch that checkpoints record. Other settings are not recorded, because they may
// name commands that git would run.
var branchKeys = []string{"remote", "merge", "rebase", "pushremote", "description"}

// portableConfig returns the branch settings in branchKeys and the user's name and email from a git configuration. It
// returns nil if the configuration cannot be parsed.
func portableConfig(text []byte) []byte {
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

// hasSecret reports whether value is a URL with a user name or password, as the value of branch.NAME.remote can be.
func hasSecret(value string) bool {
	_, rest, ok := strings.Cut(value, "://")
	host, _, _ := strings.Cut(rest, "/")
	return ok && strings.Contains(host, "@")
}

// readTips prepares the objects that the state s names by id. It copies the objects that were created in the session to
// the Repo, and sets s.tips and s.parents.
func (c *Capturer) readTips(ctx context.Context, s *gitState, copier *session.Copier) error {
	seen := map[object.ID]bool{}
	add := func(id object.ID) {
		if !id.IsZero() && !seen[id] {
			seen[id] = true
			s.tips = append(s.tips, id)
		}
	}
	add(s.Head)
	for _, r := range c.roots {
		if r.broken != nil {
			continue
		}
		add(r.commit)
		for _, id := range c.operationTips(r.files) {
			add(id)
		}
	}
	for _, stash := range s.Stashes {
		add(stash.Commit)
	}
	for _, r := range s.Refs {
		add(r.ID)
	}
	for _, id := range c.operationTips(s.Files) {
		add(id)
	}
	slices.SortFunc(s.tips, object.ID.Compare) // sort, because equal states must result in equal commits
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
		err := copier.Commits(ctx, []object.ID{id})
		if err != nil {
			// Without the commit of HEAD, the checkpoint could not be restored, so return an error.
			if id == s.Head {
				return err
			}
			// Git lacks the object: git prunes unreachable objects, such as an old ORIG_HEAD, and does not fetch every tag.
			c.settled[id] = true
			continue
		}
		made[id] = true
	}
	for _, id := range s.tips {
		if !made[id] {
			continue
		}
		if err := c.readTip(ctx, id, s, copier); err != nil {
			return err
		}
	}
	return nil
}

// operationTips returns the ids of the commits that are named in the files of operations in progress, such as
// MERGE_HEAD.
func (c *Capturer) operationTips(files map[string]session.File) (ids []object.ID) {
	for name, f := range files {
		// Of the recorded files, only those that are tested here contain ids of commits, one per line.
		if !strings.HasSuffix(name, "_HEAD") &&
			!slices.Contains([]string{"rebase-merge/onto", "rebase-merge/orig-head", "rebase-apply/onto",
				"rebase-apply/orig-head"}, name) {
			continue
		}
		for line := range strings.Lines(string(f.Content)) {
			if id, err := object.ParseID(strings.TrimSpace(line)); err == nil && id.Format() == c.format {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// maxTagChain is the maximum number of tags in a chain of tags that point to tags.
const maxTagChain = 16

// readTip makes the object id, which was created in the session, reachable from the checkpoint state. A commit becomes
// a parent of the state. A tag object is stored in the state itself, because its ref may be pushed later or never; then
// readTip does the same with the target of the tag.
func (c *Capturer) readTip(ctx context.Context, id object.ID, s *gitState, copier *session.Copier) error {
	for range maxTagChain {
		t, _, err := c.o.Repo.Size(id)
		if err != nil || t != object.Commit && t != object.Tag {
			return nil
		}
		if t == object.Commit {
			if !slices.Contains(s.parents, id) { // several refs may name the same commit
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
		// If git no longer has the target, the tag is recorded without it.
		if copier.Commits(ctx, []object.ID{id}) != nil {
			return nil
		}
	}
	return nil
}

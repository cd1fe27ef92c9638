package gitdir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// The functions in this file create a git directory with the state that another git directory had at a checkpoint of a
// session: HEAD, refs, stashes, upstreams, an operation in progress, and the index. This state is read from the
// session's repository and is not trusted. From the configuration, only the upstreams of branches and the user's name
// and email are copied. Of the other files, only those in the list carried are copied, most of which git creates during
// an operation such as a merge.

// State is the part of a git directory that a checkpoint stores and that a resumed session writes to its own git
// directory.
type State struct {
	Branch  string           // full name of the branch that HEAD pointed to; "" if HEAD was detached
	Head    object.ID        // commit of HEAD; zero if Branch had no commit
	Refs    []packedrefs.Ref // refs/heads/, refs/tags/, refs/notes/ and refs/stash
	Remote  []packedrefs.Ref // refs below refs/remotes/
	Stashes []Stash          // entries of the reflog of refs/stash, newest first
	Files   map[string]File  // files by their paths in the git directory: config, and files for which Carries returns true
}

// Stash is an entry of the reflog of refs/stash.
type Stash struct {
	Commit  object.ID // commit of the stash
	Message string    // message of the reflog entry
}

// File is a file in a git directory, with its contents.
type File struct {
	Content []byte
	Exec    bool // whether the file is executable
}

// carried lists the files of a git directory that a State may contain. A name that ends with a slash stands for all
// files below the directory of this name.
var carried = []string{
	"MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "MERGE_RR", "SQUASH_MSG", "AUTO_MERGE", "CHERRY_PICK_HEAD",
	"REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD",
	"BISECT_ANCESTORS_OK", "BISECT_EXPECTED_REV", "BISECT_FIRST_PARENT", "BISECT_LOG", "BISECT_NAMES", "BISECT_RUN",
	"BISECT_START", "BISECT_TERMS", "BISECT_HEAD",
	"rebase-merge/", "rebase-apply/", "sequencer/", "info/exclude", "info/sparse-checkout",
}

// Carries reports whether a State may contain the file called name, a path in the git directory.
func Carries(name string) bool {
	return slices.ContainsFunc(carried, func(c string) bool {
		return name == c || strings.HasSuffix(c, "/") && strings.HasPrefix(name, c)
	}) && filepath.IsLocal(name) && filepath.Clean(name) == name && !strings.HasSuffix(name, ".lock")
}

// branchSettings lists the settings of a branch that are copied from a State.
var branchSettings = []string{"remote", "merge", "rebase", "pushremote", "description"}

// atBranch returns o with a State whose HEAD is as o.Branch and o.Detach require. It returns an error if o.Branch is
// not the valid name of a branch, or if HEAD is to be detached and has no commit.
func (o Options) atBranch() (Options, error) {
	commit := o.Commit
	if o.State != nil {
		commit = o.State.Head
	}
	switch {
	case o.Branch != "" && !(strings.HasPrefix(o.Branch, "refs/heads/") && validRef(o.Branch)):
		return o, fmt.Errorf("write HEAD: invalid branch %q", o.Branch)
	case o.Detach && commit.IsZero():
		return o, errors.New("write HEAD: branch without commits cannot be detached")
	case o.State == nil || o.Branch == "" && !o.Detach:
		return o, nil
	}
	s := *o.State
	s.Branch = o.Branch
	if o.Branch != "" && !commit.IsZero() {
		s.Refs = slices.DeleteFunc(slices.Clone(s.Refs), func(r packedrefs.Ref) bool { return r.Name == o.Branch })
		s.Refs = append(s.Refs, packedrefs.Ref{Name: o.Branch, ID: commit})
	}
	o.State = &s
	return o, nil
}

// CheckBranch returns ErrBranchExists if a branch with the full name name is in refs and may not be moved, and another
// error if the name of a branch in refs is a directory above name or below it.
func CheckBranch(name string, move bool, refs []packedrefs.Ref) error {
	for _, r := range refs {
		switch {
		case r.Name == name && !move:
			return ErrBranchExists
		case strings.HasPrefix(r.Name, name+"/"), strings.HasPrefix(name, r.Name+"/"):
			return fmt.Errorf("%w: %s", ErrBranchBlocked, strings.TrimPrefix(r.Name, "refs/heads/"))
		}
	}
	return nil
}

// writeState writes the refs, files and reflogs of a State to a new git directory. The caller writes HEAD afterwards.
func (o Options) writeState(path string) error {
	s := o.State
	err := disk.WriteFile(filepath.Join(path, "packed-refs"), packedrefs.Encode(nil, o.stateRefs(path)), 0o644)
	for name, f := range s.Files {
		if !Carries(name) {
			continue
		}
		mode := os.FileMode(0o644)
		if f.Exec {
			mode = 0o755
		}
		at := filepath.Join(path, filepath.FromSlash(name))
		err = errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, f.Content, mode))
	}
	return errors.Join(err, o.writeStateLogs(path))
}

// stateRefs returns the refs of a State that are valid.
func (o Options) stateRefs(path string) []packedrefs.Ref {
	var refs []packedrefs.Ref
	seen := map[string]bool{}
	for _, r := range slices.Concat(o.State.Refs, o.State.Remote) {
		// Leave out HEAD of the remote, because it is a symbolic ref, which packed-refs cannot contain. SetDefault writes it.
		if validRef(r.Name) && r.Name != refname.Tracking(path, "HEAD") && !seen[r.Name] && r.ID.Format() == o.Format &&
			!r.ID.IsZero() {
			seen[r.Name] = true
			refs = append(refs, packedrefs.Ref{Name: r.Name, ID: r.ID})
		}
	}
	return refs
}

// validRef reports whether name is a valid ref name of a kind that a State may contain.
func validRef(name string) bool {
	below := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	allowed := below("refs/heads/") || below("refs/tags/") || below("refs/notes/") || below("refs/remotes/") ||
		name == stashRef
	return allowed && refname.Valid(name)
}

const stashRef = "refs/stash"

// stateHead returns the contents of the file HEAD. It returns an error if the State has no valid HEAD.
func (o Options) stateHead() (string, error) {
	switch s := o.State; {
	case s.Branch != "" && strings.HasPrefix(s.Branch, "refs/heads/") && validRef(s.Branch):
		return "ref: " + s.Branch + "\n", nil
	case s.Branch == "" && !s.Head.IsZero() && s.Head.Format() == o.Format:
		return s.Head.String() + "\n", nil
	default:
		return "", fmt.Errorf("write HEAD: invalid branch %q or commit %s", s.Branch, s.Head)
	}
}

// writeStateLogs writes the reflog of refs/stash, in which git looks up all stashes except the newest one, and the
// first entry of the reflogs of HEAD and of its branch.
func (o Options) writeStateLogs(path string) error {
	zero := strings.Repeat("0", 2*o.Format.Size())
	who := func(id object.ID) string {
		if o.Committer != nil {
			if text := o.Committer(id); text != "" {
				return text
			}
		}
		return "artifactfs <artifactfs@localhost> 0 +0000"
	}
	logs := map[string]string{}
	if s := o.State; !s.Head.IsZero() {
		what := "session: went on at a checkpoint"
		if s.Branch == "" { // git status searches the reflog for a message of this form, to print where HEAD was detached
			what = "checkout: moving from a checkpoint to " + s.Head.String()
		}
		line := zero + " " + s.Head.String() + " " + who(s.Head) + "\t" + what + "\n"
		logs["HEAD"] = line
		if s.Branch != "" {
			logs[s.Branch] = line
		}
	}
	var stashes bytes.Buffer
	before := zero
	// A reflog begins with the oldest entry.
	for _, stash := range slices.Backward(o.State.Stashes) {
		fmt.Fprintf(&stashes, "%s %s %s\t%s\n", before, stash.Commit, who(stash.Commit), oneLine(stash.Message))
		before = stash.Commit.String()
	}
	if stashes.Len() > 0 {
		logs[stashRef] = stashes.String()
	}
	for name, text := range logs {
		at := filepath.Join(path, "logs", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// oneLine returns s with line breaks and NULs replaced by spaces, because a reflog entry is one line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return ' '
		}
		return r
	}, s)
}

// maxCarriedConfig is the size in bytes above which the configuration in a State is ignored.
const maxCarriedConfig = 1 << 20

// setCarried copies the settings of branches, and the user's name and email, from the configuration in a State to c. It
// skips values with control characters.
func (o Options) setCarried(c *config.Config) error {
	text, ok := o.State.Files["config"]
	if !ok || len(text.Content) > maxCarriedConfig {
		return nil
	}
	was := config.New()
	if err := config.NewDecoder(bytes.NewReader(text.Content)).Decode(was); err != nil {
		return fmt.Errorf("read settings of branches: %w", err)
	}
	c.RemoveSection("branch")
	for _, b := range was.Section("branch").Subsections {
		if !validRef("refs/heads/" + b.Name) {
			continue
		}
		for _, key := range branchSettings {
			for _, value := range b.OptionAll(key) {
				if !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) {
					c.Section("branch").Subsection(b.Name).AddOption(key, value)
				}
			}
		}
	}
	for _, key := range []string{"name", "email"} {
		if value := was.Section("user").Option(key); value != "" &&
			!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' }) {
			c.Section("user").SetOption(key, value)
		}
	}
	return nil
}

// Staged contains the differences between an index and the unchanged working tree.
type Staged struct {
	Changes []index.Change // changed paths that have no conflict
	Others  []index.Entry  // entries of stages 1 to 3, for paths that have a conflict; sorted by path
	// Trees returns the id of a directory's tree in the index, or false if the id is unknown. Trees may be nil.
	Trees func(dir string) (object.ID, bool)
}

// Apply changes x, which is the index of an unchanged working tree, so that it contains the staged changes.
func (s *Staged) Apply(x *index.Index) {
	changes := slices.Clone(s.Changes)
	// The entries of a conflict (stages 1 to 3) replace the entry of stage 0 for the same path, which is in the index of
	// the unchanged working tree.
	for i, e := range s.Others {
		if i == 0 || s.Others[i-1].Path != e.Path {
			changes = append(changes, index.Change{Entry: index.Entry{Path: e.Path}, Gone: true})
		}
	}
	x.Apply(changes)
	if len(s.Others) > 0 {
		x.Entries = append(x.Entries, s.Others...)
		slices.SortStableFunc(x.Entries, func(a, b index.Entry) int {
			if n := strings.Compare(a.Path, b.Path); n != 0 {
				return n
			}
			return int(a.Stage) - int(b.Stage)
		})
	}
	if s.Trees != nil {
		x.SetTrees(s.Trees)
	}
}

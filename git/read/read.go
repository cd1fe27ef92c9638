// Package read reads commits, trees, files and differences from a git directory, by stock git. Nothing is written to
// the git directory, nothing is fetched, and replacement objects (refs/replace) are ignored, because any client may
// have pushed them.
//
// A name of a commit is a full object id, HEAD, or the name of a ref: a short name of a branch or tag (branches take
// precedence), or a name from "refs/" or the part after it. The expressions of git (main~3, @{1}, :/text) are no names,
// because some of them read the whole history.
package read

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
)

// ErrNotFound means that an object, a ref or a path does not exist in the git directory.
var ErrNotFound = errors.New("not found")

// TypeError means that an object has another type than the one that was requested. It wraps ErrNotFound.
type TypeError struct {
	ID        string
	Want, Got string // "commit", "tree", "blob" or "tag"
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("object %s is a %s, not a %s", e.ID, e.Got, e.Want)
}

// Unwrap returns ErrNotFound.
func (e *TypeError) Unwrap() error { return ErrNotFound }

// Repo reads one git directory. It may be used from any goroutine.
type Repo struct {
	Dir string
	Git gitcmd.Confined // makes the commands
	// ShortNames restricts names of commits to object ids, HEAD, and short names of branches and tags.
	ShortNames bool
	// Pool keeps processes of git for later calls; nil: each call starts git.
	Pool *Pool
}

// bigFile is the size from which git treats files as binary in differences, and avoids loading them into memory.
const bigFile = "16m"

// git returns the git directory, for package gitcmd.
func (r Repo) git() gitcmd.Repo {
	git := r.Git.In(r.Dir)
	git.Options = []string{"--no-replace-objects", "-c", "core.bigFileThreshold=" + bigFile}
	git.Env = []string{gitcmd.NoLocks}
	return git
}

// Command returns a git command for the repository.
func (r Repo) Command(ctx context.Context, args ...string) *exec.Cmd {
	return r.git().Command(ctx, args...)
}

// OfCommits returns a git command that reads commits only.
func (r Repo) OfCommits(ctx context.Context, args ...string) *exec.Cmd {
	r.Git = r.Git.ForCommits()
	return r.Command(ctx, args...)
}

// candidates returns the full names of the refs for which a name of a commit may stand, in the order in which they are
// tried. It returns the id itself for an id, and nil if the name cannot be one of a ref.
func (r Repo) candidates(name string) []string {
	switch {
	case name == "HEAD" || object.ValidID(name):
		return []string{name}
	case r.ShortNames && strings.HasPrefix(name, "refs/"):
		return nil
	}
	prefixes := []string{"refs/heads/", "refs/tags/", "refs/", ""}
	if r.ShortNames {
		prefixes = prefixes[:2]
	}
	var list []string
	for _, prefix := range prefixes {
		if full := prefix + name; strings.HasPrefix(full, "refs/") && refname.Valid(full) {
			list = append(list, full)
		}
	}
	return list
}

// Resolve returns the id of the object for which a name of a commit stands. It returns ErrNotFound if there is none.
func (r Repo) Resolve(ctx context.Context, name string) (id string, err error) {
	err = r.use(ctx, func(b *batch) (bool, error) {
		id, err = r.resolve(b, name)
		return false, err
	})
	return id, err
}

// info returns what an object is. It returns ErrNotFound if it does not exist.
func (r Repo) info(ctx context.Context, id string) (o Object, err error) {
	err = r.use(ctx, func(b *batch) (bool, error) {
		o, err = b.info(id)
		return false, err
	})
	return o, err
}

func (r Repo) resolve(b *batch, name string) (string, error) {
	for _, candidate := range r.candidates(name) {
		o, err := b.info(candidate)
		if !errors.Is(err, ErrNotFound) {
			return o.ID, err
		}
	}
	return "", fmt.Errorf("resolve %q: %w", name, ErrNotFound)
}

// Reachable returns nil if a commit exists and the repository has all objects that the commit reaches, and an error
// otherwise. A commit that a branch reaches is complete; for any other commit, the objects that no branch reaches are
// checked.
func (r Repo) Reachable(ctx context.Context, id string) error {
	o, err := r.info(ctx, id)
	if err != nil {
		return err
	}
	if o.Type != "commit" {
		return &TypeError{id, "commit", o.Type}
	}
	// git receive-pack checks pushes in the same way, but against all refs, of which there can be many.
	err = gitcmd.Run(r.Command(ctx, "rev-list", "--objects", "--quiet", id, "--not", "--branches"))
	if gitcmd.Exited(err, 128) && ctx.Err() == nil {
		return fmt.Errorf("read history of %s: %w: objects are missing", id, ErrNotFound)
	}
	return err
}

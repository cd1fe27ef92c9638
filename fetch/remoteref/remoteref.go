// Package remoteref finds the commit that a user names on a remote.
package remoteref

import (
	"context"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
)

// Error means that the remote has no such branch, tag or commit.
type Error struct {
	Ref string
	// Similar lists the names of at most five refs of the remote that the user may have meant instead of Ref.
	Similar []string
}

// Error returns a message that contains Ref as the user typed it. It does not mention the refs in Similar, which the
// caller prints.
func (e *Error) Error() string {
	return fmt.Sprintf("find %q: the remote has no such branch, tag or commit", e.Ref)
}

// Target is the result of resolving a ref: the commit, and the object to request from the remote.
type Target struct {
	Name   string    // full name of the ref; "" if the user passed the id of a commit
	Want   object.ID // object to request: the annotated tag if the ref names one, otherwise the commit
	Commit object.ID
	Others bool // true if the branch of HEAD does not exist, but other branches do
}

// Unborn reports whether the ref names a branch that has no commit yet, such as HEAD of an empty repository.
func (t Target) Unborn() bool { return t.Want.IsZero() }

// Resolve returns the commit to which the name ref points on the remote; "" and "HEAD" stand for the remote's HEAD. It
// sends no request if ref is a full commit id. It returns an Error if the remote has no such ref, and another error if
// ref is a commit id of another object format than format.
func Resolve(ctx context.Context, remote *transport.Remote, format object.Format, ref string) (Target, error) {
	if id, err := object.ParseID(ref); err == nil {
		if id.Format() != format {
			return Target{}, fmt.Errorf("find %s: the remote has no such commit, because its object format is %s", ref, format)
		}
		return Target{Want: id, Commit: id}, nil
	}
	if ref == "" || ref == "HEAD" {
		return resolveHead(ctx, remote)
	}
	// The first candidate that exists is used, so a branch has precedence over a tag of the same name. This differs from
	// `git rev-parse`, where the tag has precedence.
	candidates := []string{"refs/heads/" + ref, "refs/tags/" + ref, "refs/" + ref}
	if strings.HasPrefix(ref, "refs/") {
		candidates = []string{ref}
	}
	refs, err := remote.Refs(ctx, candidates)
	if err != nil {
		return Target{}, err
	}
	for _, name := range candidates {
		for _, r := range refs.List {
			if r.Name == name {
				return targetOf(r), nil
			}
		}
	}
	return Target{}, &Error{ref, similar(refs.List)}
}

// resolveHead returns the commit of the remote's HEAD. If the branch to which HEAD points does not exist, as in an
// empty repository, it returns an unborn target (see Target.Unborn) with the name of this branch.
func resolveHead(ctx context.Context, remote *transport.Remote) (Target, error) {
	refs, err := remote.Refs(ctx, []string{"HEAD"})
	if err != nil {
		return Target{}, err
	}
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			t := targetOf(r)
			t.Name = r.Target // Target is "" if the remote's HEAD is detached
			return t, nil
		}
	}
	name := refs.Unborn
	if name == "" {
		name = "refs/heads/main" // git's default, used because the remote did not send the name
	}
	branches, err := remote.Refs(ctx, []string{"refs/heads/"})
	return Target{Name: name, Others: len(branches.List) > 0}, err
}

// targetOf returns the target of a ref that the remote advertised. If the ref is an annotated tag, Want is the tag
// itself and Commit is the commit to which it points.
func targetOf(r transport.Ref) Target {
	t := Target{Name: r.Name, Want: r.ID, Commit: r.ID}
	if !r.Peeled.IsZero() {
		t.Commit = r.Peeled
	}
	return t
}

// similar returns the names of the first five refs of list, or of all refs if list has fewer than five.
func similar(list []transport.Ref) []string {
	var names []string
	for _, r := range list {
		if len(names) < 5 {
			names = append(names, r.Name)
		}
	}
	return names
}

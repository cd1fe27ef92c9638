package fetch

import (
	"context"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// RefError means that the remote has no such branch, tag or commit.
type RefError struct {
	Ref string
	// Similar lists at most five names of refs on the remote that the user may have meant.
	Similar []string
}

// Error returns a message that names the ref as the user typed it. The similar names are left to
// the caller.
func (e *RefError) Error() string {
	return fmt.Sprintf("find %q: the remote has no such branch, tag or commit", e.Ref)
}

// target is the object that a ref names.
type target struct {
	name   string    // full ref name, "" for a commit id
	want   object.ID // the object to request: an annotated tag, or the commit itself
	commit object.ID
}

// unborn reports whether the ref names a branch without a commit, such as HEAD of an empty
// repository.
func (t target) unborn() bool { return t.want.IsZero() }

// resolve returns the commit that ref names; "" and "HEAD" are the remote's HEAD. A full commit id
// costs no request. It returns RefError if the remote has no such ref, and an error if a commit id
// belongs to the other object format.
func (a *acquirer) resolve(ctx context.Context, ref string) (target, error) {
	if id, err := object.ParseID(ref); err == nil {
		if id.Format() != a.storage.objects.Format() {
			return target{}, fmt.Errorf("find %s: the remote's object format is %s", ref, a.storage.objects.Format())
		}
		return target{want: id, commit: id}, nil
	}
	if ref == "" || ref == "HEAD" {
		return a.resolveHead(ctx)
	}
	// The first candidate that exists is used, so a branch has precedence over a tag of the same name. In git rev-parse the tag has
	// precedence.
	candidates := []string{"refs/heads/" + ref, "refs/tags/" + ref, "refs/" + ref}
	if strings.HasPrefix(ref, "refs/") {
		candidates = []string{ref}
	}
	refs, err := a.fetcher.remote.Refs(ctx, candidates)
	if err != nil {
		return target{}, err
	}
	for _, name := range candidates {
		for _, r := range refs.List {
			if r.Name == name {
				return targetOf(r), nil
			}
		}
	}
	return target{}, &RefError{ref, similar(refs.List)}
}

// resolveHead returns the commit of the remote's HEAD. For an empty repository it returns an unborn
// target with the name of the branch that HEAD points to.
func (a *acquirer) resolveHead(ctx context.Context) (target, error) {
	refs, err := a.fetcher.remote.Refs(ctx, []string{"HEAD"})
	if err != nil {
		return target{}, err
	}
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			t := targetOf(r)
			t.name = r.Target // "" when the remote's HEAD is detached
			return t, nil
		}
	}
	name := refs.Unborn
	if name == "" {
		name = "refs/heads/main" // git's default, because the server did not name the branch
	}
	return target{name: name}, nil
}

// targetOf returns the target of an advertised ref. An annotated tag is requested itself, and
// peeled to its commit.
func targetOf(r transport.Ref) target {
	t := target{name: r.Name, want: r.ID, commit: r.ID}
	if !r.Peeled.IsZero() {
		t.commit = r.Peeled
	}
	return t
}

// similar returns the names of the first five refs of list.
func similar(list []transport.Ref) []string {
	var names []string
	for _, r := range list {
		if len(names) < 5 {
			names = append(names, r.Name)
		}
	}
	return names
}

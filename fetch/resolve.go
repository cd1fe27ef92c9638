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
	// Similar lists the names of at most five refs of the remote that the user may have meant instead of Ref.
	Similar []string
}

// Error returns a message that contains Ref as the user typed it. It does not mention the refs in Similar, which the caller prints.
func (e *RefError) Error() string {
	return fmt.Sprintf("find %q: the remote has no such branch, tag or commit", e.Ref)
}

// target is the result of resolving a ref: the commit, and the object to request from the remote.
type target struct {
	name   string    // full name of the ref; "" if the user passed the id of a commit
	want   object.ID // object to request: the annotated tag if the ref names one, otherwise the commit
	commit object.ID
}

// unborn reports whether the ref names a branch that has no commit yet, such as HEAD of an empty repository.
func (t target) unborn() bool { return t.want.IsZero() }

// resolve returns the commit to which the name ref points on the remote; "" and "HEAD" stand for the remote's HEAD. It sends no
// request if ref is a full commit id. It returns a RefError if the remote has no such ref, and another error if ref is a commit
// id of another object format than the store's.
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
	// The first candidate that exists is used, so a branch has precedence over a tag of the same name. This differs from `git
	// rev-parse`, where the tag has precedence.
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

// resolveHead returns the commit of the remote's HEAD. For an empty repository it returns an unborn target (see target.unborn)
// with the name of the branch to which HEAD points.
func (a *acquirer) resolveHead(ctx context.Context) (target, error) {
	refs, err := a.fetcher.remote.Refs(ctx, []string{"HEAD"})
	if err != nil {
		return target{}, err
	}
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			t := targetOf(r)
			t.name = r.Target // Target is "" if the remote's HEAD is detached
			return t, nil
		}
	}
	name := refs.Unborn
	if name == "" {
		name = "refs/heads/main" // git's default, used because the remote did not send the name
	}
	return target{name: name}, nil
}

// targetOf returns the target of a ref that the remote advertised. If the ref is an annotated tag, want is the tag itself and
// commit is the commit to which it points.
func targetOf(r transport.Ref) target {
	t := target{name: r.Name, want: r.ID, commit: r.ID}
	if !r.Peeled.IsZero() {
		t.commit = r.Peeled
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

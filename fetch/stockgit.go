package fetch

import (
	"context"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// acquireWithGit does what acquire does for remotes without protocol version 2, which are old servers and plain file servers. Stock
// git downloads the commit with all its files, so no file is fetched on demand, and a notice informs the user.
func (a *acquirer) acquireWithGit(ctx context.Context, ref string, start time.Time) (*Snapshot, error) {
	a.notices.add("the remote does not speak git protocol version 2: everything is downloaded with stock git first")
	name, id, format, err := a.resolveWithGit(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := a.storage.prepare(ctx, format, false); err != nil {
		return nil, err
	}
	snap := newSnapshot(target{name: name, want: id, commit: id}, format, start)
	if id.IsZero() {
		// The branch is unborn: there is no commit to fetch.
		snap.finish(nil)
		return snap, nil
	}
	if !a.haveSnapshot(snap) {
		if err := a.fetchWithGit(ctx, name, id); err != nil {
			return nil, err
		}
		if !a.haveSnapshot(snap) {
			return nil, fmt.Errorf("fetch commit %s: %w", id, ErrNotFound)
		}
		if err := a.repo.AddShallow(a.storage.hasParents); err != nil {
			return nil, err
		}
	}
	snap.shallow = a.repo.Boundary()
	snap.finish(nil)
	return snap, nil
}

// resolveWithGit resolves a ref with `git ls-remote`, which supports every protocol of git.
func (a *acquirer) resolveWithGit(ctx context.Context, ref string) (name string, id object.ID, format object.Format, err error) {
	refs, err := a.repo.ListRemote(ctx)
	if err != nil {
		return "", object.ID{}, 0, err
	}
	found, f := refs.ByName, refs.Format
	// A full commit id needs no ref, but the remote must answer to show the object format of its
	// ids.
	if v, err := object.ParseID(ref); err == nil {
		return "", v, v.Format(), nil
	}
	if ref == "" || ref == "HEAD" {
		if v, ok := found["HEAD"]; ok {
			return refs.Head, v, f, nil
		}
		return "refs/heads/main", object.ID{}, f, nil
	}
	candidates := []string{"refs/heads/" + ref, "refs/tags/" + ref, "refs/" + ref, ref}
	for _, c := range candidates {
		// For an annotated tag, ls-remote prints the commit with the suffix ^{}.
		if v, ok := found[c+"^{}"]; ok {
			return c, v, f, nil
		}
		if v, ok := found[c]; ok {
			return c, v, f, nil
		}
	}
	return "", object.ID{}, 0, &RefError{Ref: ref}
}

// fetchWithGit fetches one commit with its files into the store. name is the full name of the ref, or "" for a commit that was given
// by its id.
func (a *acquirer) fetchWithGit(ctx context.Context, name string, id object.ID) error {
	want := name
	if want == "" {
		want = id.String()
	}
	if err := a.repo.FetchCommit(ctx, want); err != nil {
		return err
	}
	return a.storage.objects.Refresh()
}

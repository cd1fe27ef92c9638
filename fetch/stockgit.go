package fetch

import (
	"context"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/object"
)

// acquireWithGit does the same as acquire, for remotes that do not support protocol version 2: old servers and plain file
// servers. Stock git downloads the commit with all of its files, so no file is fetched on demand. A notice informs the user about
// this limitation.
func (a *acquirer) acquireWithGit(ctx context.Context, ref string, start time.Time) (*Snapshot, error) {
	a.notices.Add("the remote does not speak git protocol version 2: everything is downloaded with stock git first")
	name, id, format, err := a.resolveWithGit(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := a.storage.prepare(ctx, format, false); err != nil {
		return nil, err
	}
	snap := newSnapshot(remoteref.Target{Name: name, Want: id, Commit: id}, format, start)
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

// resolveWithGit returns the id of the commit to which the name ref points on the remote, the full name of the ref, and the
// object format. It runs `git ls-remote`, which supports every protocol of git. id is zero for a branch without a commit.
func (a *acquirer) resolveWithGit(ctx context.Context, ref string) (name string, id object.ID, format object.Format, err error) {
	refs, err := a.repo.ListRemote(ctx)
	if err != nil {
		return "", object.ID{}, 0, err
	}
	found, f := refs.ByName, refs.Format
	// A full commit id is not looked up among the refs. The length of the id shows the object format.
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
		// For an annotated tag, ls-remote also prints the commit to which the tag points, with ^{} after the tag's name.
		if v, ok := found[c+"^{}"]; ok {
			return c, v, f, nil
		}
		if v, ok := found[c]; ok {
			return c, v, f, nil
		}
	}
	return "", object.ID{}, 0, &remoteref.Error{Ref: ref}
}

// fetchWithGit fetches one commit with its files into the store. name is the full name of the ref, or "" if the user passed the
// id of a commit.
func (a *acquirer) fetchWithGit(ctx context.Context, name string, id object.ID) error {
	want := name
	if want == "" {
		want = id.String()
	}
	if err := a.repo.FetchCommit(ctx, want); err != nil {
		return err
	}
	return a.storage.addFetched(ctx)
}

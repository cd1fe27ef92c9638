package fetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/transport"
)

// acquireWithGit does the same as acquire, for remotes that do not support protocol version 2: old servers and plain
// file servers. Stock git downloads the commit with all of its files, so no file is fetched on demand. A notice informs
// the user about this limitation.
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
		if err := a.fetchWithGit(ctx, name, id, a.printed.tagsOf(id)); err != nil {
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

// resolveWithGit returns the id of the commit to which the name ref points on the remote, the full name of the ref, and
// the object format. It runs `git ls-remote`, which supports every protocol of git. id is zero for a branch without a
// commit.
func (a *acquirer) resolveWithGit(ctx context.Context,
	ref string) (name string, id object.ID, format object.Format, err error) {
	refs, err := a.listRemote(ctx)
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
		if v, ok := found[c+peeledSuffix]; ok {
			return c, v, f, nil
		}
		if v, ok := found[c]; ok {
			return c, v, f, nil
		}
	}
	return "", object.ID{}, 0, &remoteref.Error{Ref: ref}
}

// fetchWithGit fetches one commit with its files into the store, and annotated tags of the commit. name is the full
// name of the ref, or "" if the user passed the id of a commit.
func (a *acquirer) fetchWithGit(ctx context.Context, name string, id object.ID, tags []string) error {
	want := name
	if want == "" {
		want = id.String()
	}
	if err := a.repo.FetchCommit(ctx, want, tags...); err != nil {
		return err
	}
	return a.storage.addFetched(ctx)
}

// printed is the last list of refs that `git ls-remote` has printed. mu protects all other fields.
type printed struct {
	mu   sync.Mutex
	refs bare.RemoteRefs
	at   time.Time // time at which the list was printed; zero: there is no list
}

// listRemote lists the refs of the remote with stock git, and keeps the list.
func (a *acquirer) listRemote(ctx context.Context) (bare.RemoteRefs, error) {
	now := time.Now()
	refs, err := a.repo.ListRemote(ctx)
	if err != nil {
		return bare.RemoteRefs{}, err
	}
	a.printed.mu.Lock()
	defer a.printed.mu.Unlock()
	a.printed.refs, a.printed.at = refs, now
	return refs, nil
}

// listWithGit returns the refs of a remote that does not support protocol version 2. It asks the remote only if the
// last list is older than listingAge.
func (a *acquirer) listWithGit(ctx context.Context) (transport.Refs, error) {
	a.printed.mu.Lock()
	refs, at := a.printed.refs, a.printed.at
	a.printed.mu.Unlock()
	if time.Since(at) > listingAge {
		var err error
		if refs, err = a.listRemote(ctx); err != nil {
			return transport.Refs{}, err
		}
	}
	var list transport.Refs
	for name, id := range refs.ByName {
		r := transport.Ref{Name: name, ID: id, Peeled: refs.ByName[name+peeledSuffix]}
		switch {
		case name == "HEAD":
			r.Target = refs.Head
		case !refname.Valid(name) || !strings.HasPrefix(name, "refs/heads/") && !strings.HasPrefix(name, "refs/tags/"):
			continue
		}
		list.List = append(list.List, r)
	}
	slices.SortFunc(list.List, func(a, b transport.Ref) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// peeledSuffix is what `git ls-remote` appends to the name of an annotated tag in the line with the object to which the
// tag points.
const peeledSuffix = "^{}"

// tagsOf returns the names of at most maxTags annotated tags of a commit.
func (p *printed) tagsOf(commit object.ID) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, id := range p.refs.ByName {
		if tag, ok := strings.CutSuffix(name, peeledSuffix); ok && id == commit && refname.Valid(tag) &&
			len(names) < maxTags {
			names = append(names, tag)
		}
	}
	return names
}

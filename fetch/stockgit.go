package fetch

import (
	"context"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/object"
)

// acquireWithGit is Acquire for remotes without protocol version 2: old servers and plain file servers. Stock git downloads
// the commit with all its files, so no file is fetched on demand, and a notice informs the user.
func (s *Store) acquireWithGit(ctx context.Context, ref string, start time.Time) (*Snapshot, error) {
	s.notice("the remote does not speak git protocol version 2: everything is downloaded with stock git first")
	name, id, format, err := s.resolveWithGit(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, format, false); err != nil {
		return nil, err
	}
	snap := newSnapshot(target{name: name, want: id, commit: id}, format, start)
	if id.IsZero() {
		// The branch is unborn: there is no commit to fetch.
		snap.finish(nil)
		return snap, nil
	}
	if !s.haveSnapshot(snap) {
		if err := s.fetchWithGit(ctx, name, id); err != nil {
			return nil, err
		}
		if !s.haveSnapshot(snap) {
			return nil, fmt.Errorf("fetch commit %s: %w", id, ErrNotFound)
		}
		if err := s.repo.AddShallow(s.hasParents); err != nil {
			return nil, err
		}
	}
	snap.shallow = s.repo.Boundary()
	snap.finish(nil)
	return snap, nil
}

// resolveWithGit resolves a ref with `git ls-remote`, which supports every protocol of git.
func (s *Store) resolveWithGit(ctx context.Context, ref string) (name string, id object.ID, format object.Format, err error) {
	refs, err := s.repo.ListRemote(ctx)
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

// fetchWithGit fetches one commit with its files: with depth 1, or, from plain file servers, with
// its history.
func (s *Store) fetchWithGit(ctx context.Context, name string, id object.ID) error {
	want := name
	if want == "" {
		want = id.String()
	}
	if err := s.repo.FetchCommit(ctx, want); err != nil {
		return err
	}
	return s.objects.Refresh()
}

// deepenWithGit fetches the missing history, with haves.
func (s *Store) deepenWithGit(ctx context.Context, filter bool) error {
	if err := s.repo.FetchHistory(ctx, filter); err != nil {
		return err
	}
	if err := s.objects.Refresh(); err != nil {
		return err
	}
	refs, err := s.repo.ReadRefs(ctx)
	if err != nil {
		return err
	}
	s.setRefs(refs)
	return s.repo.TrimBoundary(s.hasParents)
}

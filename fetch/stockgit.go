package fetch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
)

// Credential is a user name and secret that stock git may use. The zero value leaves git to its own helpers.
type Credential struct{ User, Secret string }

// credentialArgs hand a secret to git through its environment: an argument would show in the process list.
func (s *Store) gitCredential() (args, env []string) {
	if s.credential.Secret == "" {
		return nil, nil
	}
	return []string{"-c", "credential.helper=", "-c", `credential.helper=!f() { echo "username=$AFS_USER"; echo "password=$AFS_SECRET"; }; f`},
		[]string{"AFS_USER=" + s.credential.User, "AFS_SECRET=" + s.credential.Secret}
}

func (s *Store) git(ctx context.Context, args ...string) ([]byte, error) {
	credential, env := s.gitCredential()
	return runGit(ctx, s.GitDir(), env, append(credential, args...)...)
}

// acquireWithGit serves remotes that do not speak protocol version 2: old servers and plain file servers. Stock
// git downloads the commit with all its files, so nothing is lazy here, and the user is told.
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
		if err := s.addBoundary(readIDs(s.shallowFile())); err != nil {
			return nil, err
		}
	}
	snap.shallow = s.Boundary()
	snap.finish(nil)
	return snap, nil
}

// resolveWithGit finds a ref by `git ls-remote`, which follows every protocol git has.
func (s *Store) resolveWithGit(ctx context.Context, ref string) (name string, id object.ID, f object.Format, err error) {
	credential, env := s.gitCredential()
	out, err := runGit(ctx, s.dir, env, append(credential, "ls-remote", "--symref", s.remote.URL())...)
	if err != nil {
		return "", object.ID{}, 0, err
	}
	found := map[string]object.ID{}
	head := ""
	for line := range strings.Lines(string(out)) {
		value, refName, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if t, ok := strings.CutPrefix(value, "ref: "); ok {
			if refName == "HEAD" {
				head = t
			}
			continue
		}
		if v, err := object.ParseID(value); err == nil {
			found[refName] = v
			f = v.Format()
		}
	}
	if v, err := object.ParseID(ref); err == nil {
		return "", v, v.Format(), nil
	}
	if ref == "" || ref == "HEAD" {
		if v, ok := found["HEAD"]; ok {
			return head, v, f, nil
		}
		return "refs/heads/main", object.ID{}, f, nil
	}
	candidates := []string{"refs/heads/" + ref, "refs/tags/" + ref, "refs/" + ref, ref}
	for _, c := range candidates {
		if v, ok := found[c+"^{}"]; ok {
			return c, v, f, nil
		}
		if v, ok := found[c]; ok {
			return c, v, f, nil
		}
	}
	return "", object.ID{}, 0, &RefError{Ref: ref}
}

// fetchWithGit fetches one commit with its files; plain file servers cannot cut history, so without depth then.
func (s *Store) fetchWithGit(ctx context.Context, name string, id object.ID) error {
	want := name
	if want == "" {
		want = id.String()
	}
	_, err := s.git(ctx, "fetch", "-q", "--no-tags", "--no-filter", "--depth=1", s.remote.URL(), want)
	if err != nil && ctx.Err() == nil {
		_, err = s.git(ctx, "fetch", "-q", "--no-tags", "--no-filter", s.remote.URL(), want)
	}
	if err != nil {
		return err
	}
	return s.objects.Refresh()
}

// deepenWithGit completes history by a fetch that tells the remote what is here.
func (s *Store) deepenWithGit(ctx context.Context, filter bool) error {
	args := []string{"fetch", "-q", "--prune", "--force"}
	if filter {
		args = append(args, "--filter=blob:none")
	}
	if len(readIDs(s.shallowFile())) > 0 {
		args = append(args, "--unshallow")
	}
	_, err := s.git(ctx, append(args, s.remote.URL(), "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")...)
	if err != nil {
		return err
	}
	if _, err := runGit(ctx, s.GitDir(), nil, "pack-refs", "--all"); err != nil {
		return err
	}
	if err := s.objects.Refresh(); err != nil {
		return err
	}
	refs, err := s.readRefs(ctx)
	if err != nil {
		return err
	}
	s.setRefs(refs)
	return s.changeBoundary(func(old []object.ID) []object.ID { return old })
}

// readRefs lists what git has made of the store's refs.
func (s *Store) readRefs(ctx context.Context) ([]packedrefs.Ref, error) {
	out, err := runGit(ctx, s.GitDir(), nil, "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return nil, err
	}
	var refs []packedrefs.Ref
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line) // names of refs have no spaces
		r := packedrefs.Ref{Name: f[0]}
		if r.ID, err = object.ParseID(f[1]); err == nil && len(f) > 2 {
			r.Peeled, err = object.ParseID(f[2])
		}
		if err != nil {
			return nil, fmt.Errorf("read refs: %w", err)
		}
		refs = append(refs, r)
	}
	return refs, nil
}

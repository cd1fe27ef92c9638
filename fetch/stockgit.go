package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
)

// Credential is a user name and secret for stock git. With the zero value, git uses the credential helpers that the user has
// configured.
type Credential struct{ User, Secret string }

// credentialHelper prints the login in descriptor 3, a file in memory. Arguments and environment
// could be read by other processes.
const credentialHelper = `!f() { if test "$1" = get; then cat /proc/self/fd/3; fi; }; f`

// remoteGit runs stock git with the login for the remote.
func (s *Store) remoteGit(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	var c Credential
	if s.credential != nil {
		c = s.credential()
	}
	place, ok := originOf(s.remote.URL())
	if c.Secret == "" || !ok || strings.ContainsAny(c.User+c.Secret, "\r\n\x00") {
		return runGit(ctx, gitDir, remoteAccess{env: s.env}, args...)
	}
	// The file has the format of git's credential protocol.
	f, err := memoryFile("username=" + c.User + "\npassword=" + c.Secret + "\n")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	key := "credential." + place + ".helper=" // the login is used for this host only, even if a server redirects git to another host
	return runGit(ctx, gitDir, remoteAccess{s.env, f}, append([]string{"-c", key, "-c", key + credentialHelper}, args...)...)
}

// originOf returns the scheme and host of a URL, and false if it has none.
func originOf(remote string) (string, bool) {
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" {
		return "", false
	}
	return u.Scheme + "://" + u.Host, true
}

// memoryFile returns an unnamed file in memory with this text.
func memoryFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("artifactfs-login", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "artifactfs-login")
	if _, err := f.WriteString(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// git runs stock git with the login in the store's git directory.
func (s *Store) git(ctx context.Context, args ...string) ([]byte, error) {
	return s.remoteGit(ctx, s.GitDir(), args...)
}

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
		if err := s.addBoundary(readIDs(s.shallowFile())); err != nil {
			return nil, err
		}
	}
	snap.shallow = s.Boundary()
	snap.finish(nil)
	return snap, nil
}

// resolveWithGit resolves a ref with `git ls-remote`, which supports every protocol of git.
func (s *Store) resolveWithGit(ctx context.Context, ref string) (name string, id object.ID, f object.Format, err error) {
	out, err := s.remoteGit(ctx, s.dir, "ls-remote", "--symref", s.remote.URL())
	if err != nil {
		return "", object.ID{}, 0, err
	}
	found := map[string]object.ID{}
	head := ""
	for line := range strings.Lines(string(out)) {
		value, refName, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		// With --symref, the line "ref: refs/heads/main\tHEAD" precedes HEAD itself.
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
	// A full commit id needs no ref, but the remote must answer to show the object format of its
	// ids.
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
	_, err := s.git(ctx, "fetch", "-q", "--no-tags", "--no-filter", "--depth=1", s.remote.URL(), want)
	// The protocols of plain file servers do not support a depth: the whole history is fetched.
	if err != nil && ctx.Err() == nil {
		_, err = s.git(ctx, "fetch", "-q", "--no-tags", "--no-filter", s.remote.URL(), want)
	}
	if err != nil {
		return err
	}
	return s.objects.Refresh()
}

// deepenWithGit fetches the missing history, with haves.
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
	// completeTips reads the file packed-refs only, and the existence of that file marks the history as complete.
	if _, err := runGit(ctx, s.GitDir(), remoteAccess{}, "pack-refs", "--all"); err != nil {
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

// readRefs returns the refs that stock git has written to the store.
func (s *Store) readRefs(ctx context.Context) ([]packedrefs.Ref, error) {
	out, err := runGit(ctx, s.GitDir(), remoteAccess{}, "for-each-ref",
		"--format=%(refname) %(objectname) %(*objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return nil, err
	}
	var refs []packedrefs.Ref
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line) // names of refs contain no spaces
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

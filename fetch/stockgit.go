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

// Credential is a user name and secret that stock git may use. The zero value leaves git to its own helpers.
type Credential struct{ User, Secret string }

// credentialHelper is what git runs for a login: descriptor 3 is a file in memory that holds it. So no argument and no
// environment has it, which other processes can read.
const credentialHelper = `!f() { if test "$1" = get; then cat /proc/self/fd/3; fi; }; f`

// remoteGit runs stock git that may log in to the remote.
func (s *Store) remoteGit(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	var c Credential
	if s.credential != nil {
		c = s.credential()
	}
	place, ok := placeOf(s.remote.URL())
	if c.Secret == "" || !ok || strings.ContainsAny(c.User+c.Secret, "\r\n\x00") {
		return runGit(ctx, gitDir, reach{env: s.env}, args...)
	}
	f, err := memoryFile("username=" + c.User + "\npassword=" + c.Secret + "\n")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	key := "credential." + place + ".helper=" // of this host alone, wherever a server leads to
	return runGit(ctx, gitDir, reach{s.env, f}, append([]string{"-c", key, "-c", key + credentialHelper}, args...)...)
}

// placeOf returns the scheme and host of a URL; false: it has none.
func placeOf(remote string) (string, bool) {
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" {
		return "", false
	}
	return u.Scheme + "://" + u.Host, true
}

// memoryFile makes a file without a name that holds text.
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

func (s *Store) git(ctx context.Context, args ...string) ([]byte, error) {
	return s.remoteGit(ctx, s.GitDir(), args...)
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
	out, err := s.remoteGit(ctx, s.dir, "ls-remote", "--symref", s.remote.URL())
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
	if _, err := runGit(ctx, s.GitDir(), reach{}, "pack-refs", "--all"); err != nil {
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
	out, err := runGit(ctx, s.GitDir(), reach{}, "for-each-ref", "--format=%(refname) %(objectname) %(*objectname)", "refs/heads", "refs/tags")
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

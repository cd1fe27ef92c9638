package bare

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
)

// gitDelay is how long Run waits, after git has ended, for processes that git has started and that still hold git's
// output open.
const gitDelay = 5 * time.Second

// Credential is a user name and secret for stock git. If the Credential is the zero value, git uses the credential
// helpers that the user has configured.
type Credential struct{ User, Secret string }

// credentialHelper is a git credential helper that prints the login from descriptor 3, a file in memory. The login is
// not passed in an argument or an environment variable, because other processes could read these.
const credentialHelper = `!f() { if test "$1" = get; then cat /proc/self/fd/3; fi; }; f`

// ContactError is the failure of a git command that contacts a remote.
type ContactError struct{ Err error }

// Error returns the text of the failure.
func (e ContactError) Error() string { return e.Err.Error() }

// Unwrap returns the failure of the command.
func (e ContactError) Unwrap() error { return e.Err }

// contact runs stock git in the git directory gitDir, with the login for the remote, and returns its output. The
// failure of git is a ContactError.
func (r *Repo) contact(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	out, err := r.loggedIn(ctx, gitDir, args...)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = ContactError{err}
	}
	return out, err
}

// loggedIn runs stock git with the login for the remote, and returns its output.
func (r *Repo) loggedIn(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	var c Credential
	if r.credential != nil {
		c = r.credential()
	}
	place, ok := originOf(r.url)
	if c.Secret == "" || !ok || strings.ContainsAny(c.User+c.Secret, "\r\n\x00") {
		return run(ctx, gitDir, remoteAccess{env: r.env}, args...)
	}
	// The file in memory has the format of git's credential protocol.
	f, err := memoryFile("username=" + c.User + "\npassword=" + c.Secret + "\n")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The helper is set for this scheme and host alone. If a server redirects git to another host, git does not send the
	// login to that host.
	key := "credential." + place + ".helper="
	return run(ctx, gitDir, remoteAccess{r.env, f}, append([]string{"-c", key, "-c", key + credentialHelper}, args...)...)
}

// originOf returns the scheme and the host of a URL, and false if the URL has no host.
func originOf(remote string) (string, bool) {
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" {
		return "", false
	}
	return u.Scheme + "://" + u.Host, true
}

// memoryFile returns an unnamed file in memory that contains the string text.
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

// Run runs stock git in the git directory gitDir and returns its output. The command must not contact a remote. An
// error contains the last line that git has written to standard error.
func Run(ctx context.Context, gitDir string, args ...string) ([]byte, error) {
	return run(ctx, gitDir, remoteAccess{}, args...)
}

// remoteAccess is the environment and the login with which stock git contacts a remote. The zero value is for commands
// that contact no remote.
type remoteAccess struct {
	env   transport.Environment
	login *os.File // file with the login, which becomes git's descriptor 3; nil: no login
}

// run runs stock git in the git directory gitDir, with the given environment and login, and returns git's output. An
// error contains the last line that git has written to standard error.
func run(ctx context.Context, gitDir string, with remoteAccess, args ...string) ([]byte, error) {
	cmd := gitcmd.Repo{Dir: gitDir, Base: with.env.ForRemote()}.Command(ctx, args...)
	if with.login != nil {
		cmd.ExtraFiles = []*os.File{with.login}
	}
	// git becomes the leader of a new process session, so that it can be killed together with all processes that it has
	// started, and so that no credential helper waits for input at a terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = gitDelay
	out, err := gitcmd.Output(cmd)
	if err == nil {
		return out, nil
	}
	if failed := new(gitcmd.Error); errors.As(err, &failed) {
		failed.Stderr = lastLine(failed.Stderr)
	}
	return nil, err
}

// lastLine returns the last line of s, the output of git. git prints its fatal error last, after progress and hints.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// RemoteRefs are the refs of a remote as `git ls-remote` prints them.
type RemoteRefs struct {
	// ByName maps the full name of each ref to its id. For an annotated tag, the name with the suffix "^{}" has the id of
	// the commit to which the tag points.
	ByName map[string]object.ID
	Head   string        // full name of the branch to which the remote's HEAD points; "" if it is not known
	Format object.Format // object format of the ids
}

// ListRemote lists the refs of the remote with `git ls-remote`, which supports every protocol of git. The repository
// need not exist.
func (r *Repo) ListRemote(ctx context.Context) (RemoteRefs, error) {
	out, err := r.contact(ctx, r.dir, "ls-remote", "--symref", r.url)
	if err != nil {
		return RemoteRefs{}, err
	}
	refs := RemoteRefs{ByName: map[string]object.ID{}}
	for line := range strings.Lines(string(out)) {
		value, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		// With --symref, git prints a line such as "ref: refs/heads/main\tHEAD" before the line with the id of HEAD.
		if t, ok := strings.CutPrefix(value, "ref: "); ok {
			if name == "HEAD" {
				refs.Head = t
			}
			continue
		}
		if v, err := object.ParseID(value); err == nil {
			refs.ByName[name] = v
			refs.Format = v.Format()
		}
	}
	return refs, nil
}

// FetchCommit fetches a commit and its files, without history, and tags of the commit. want is a ref or the id of the
// commit. Plain file servers cannot leave out history, so FetchCommit fetches the whole history from such a server.
func (r *Repo) FetchCommit(ctx context.Context, want string, tags ...string) error {
	wants := append([]string{r.url, want}, tags...)
	_, err := r.contact(ctx, r.Path(), append([]string{"fetch", "-q", "--no-tags", "--no-filter", "--depth=1"},
		wants...)...)
	// The protocols of plain file servers do not support --depth, so the fetch is repeated without it.
	if err != nil && ctx.Err() == nil {
		_, err = r.contact(ctx, r.Path(), append([]string{"fetch", "-q", "--no-tags", "--no-filter"}, wants...)...)
	}
	return err
}

// FetchHistory fetches the missing history of all branches and tags with stock git, and sets the refs of the
// repository. git sends the commits on this host as haves. If filter is true, the remote leaves out all blobs.
func (r *Repo) FetchHistory(ctx context.Context, filter bool) error {
	args := []string{"fetch", "-q", "--prune", "--force"}
	if filter {
		args = append(args, "--filter=blob:none")
	}
	if len(readIDs(r.shallowFile())) > 0 {
		args = append(args, "--unshallow")
	}
	_, err := r.contact(ctx, r.Path(), append(args, r.url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")...)
	if err != nil {
		return err
	}
	// All refs are moved to the file packed-refs, because CompleteTips reads the refs in this file and no other refs. The
	// existence of the file also marks the history as complete.
	_, err = Run(ctx, r.Path(), "pack-refs", "--all")
	return err
}

// WriteCommitGraph writes git's commit-graph file. Without this file, git log parses every commit.
func (r *Repo) WriteCommitGraph(ctx context.Context) error {
	_, err := Run(ctx, r.Path(), "commit-graph", "write", "--reachable")
	return err
}

// ReadRefs returns the branches and tags that stock git has written to the repository.
func (r *Repo) ReadRefs(ctx context.Context) ([]packedrefs.Ref, error) {
	out, err := Run(ctx, r.Path(), "for-each-ref",
		"--format=%(refname) %(objectname) %(*objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return nil, err
	}
	var refs []packedrefs.Ref
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line) // the name of a ref cannot contain a space
		ref := packedrefs.Ref{Name: f[0]}
		if ref.ID, err = object.ParseID(f[1]); err == nil && len(f) > 2 {
			ref.Peeled, err = object.ParseID(f[2])
		}
		if err != nil {
			return nil, fmt.Errorf("read refs: %w", err)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}
